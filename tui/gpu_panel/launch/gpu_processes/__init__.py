"""One table of the processes on all GPUs, of this machine and of hosts."""
