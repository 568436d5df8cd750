"""Where runs are: this machine, other machines by ssh, Slurm. `verbs` finds the one that is meant."""
