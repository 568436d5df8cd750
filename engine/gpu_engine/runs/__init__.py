"""The run folder: where runs live, what state one is in, what is left of one."""
