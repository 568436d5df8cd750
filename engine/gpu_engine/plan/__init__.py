"""What follows from a spec: batch arithmetic, checks, processes and command lines."""
