"""Bringing this program to another machine, over the same ssh: `gpu-engine hosts setup`."""
