"""What runs on each node of a Slurm job: our supervisor in the foreground."""
