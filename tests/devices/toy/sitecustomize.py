"""Registers the toy in each Python of a program that has this folder on PYTHONPATH."""

from gpu_engine.devices.backends import registry

registry.BACKENDS = {"toy": "toy_backend:Toy", **registry.BACKENDS}
