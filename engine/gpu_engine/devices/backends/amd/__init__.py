"""AMD GPUs, through the files of their kernel driver."""
