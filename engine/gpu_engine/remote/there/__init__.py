"""The other end of `reach.call`: `gpu-engine agent` answers one request on its standard streams."""
