"""Where runs are: this machine, other machines by ssh, Slurm. One object for each, with the same
verbs: look, prepare and start, follow, tell, remove. `verbs` finds the object that is meant."""
