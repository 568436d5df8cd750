"""The other end of `hosts`: `gpu-engine agent` answers requests on its standard streams."""
