"""Runs as jobs of Slurm: the batch script."""
