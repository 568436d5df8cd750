"""The run folder: its files, the state of a run, its attempts, checkpoints and leftovers."""
