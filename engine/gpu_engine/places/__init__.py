"""Where runs are: this machine, others by ssh, Slurm. `verbs` finds the one that is meant."""
