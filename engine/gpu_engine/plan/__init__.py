"""What follows from a spec: arithmetic, checks, processes, the line to type."""
