"""Devices, runs, curves and logs as pages for a browser: to look at, and nothing else."""
