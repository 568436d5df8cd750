"""Puts the made machine in place of the real one, in each Python of a program that has this folder
on PYTHONPATH."""

from gpu_engine.devices.backends import registry

registry.BACKENDS["amd"] = "amd_here:AmdHere"
