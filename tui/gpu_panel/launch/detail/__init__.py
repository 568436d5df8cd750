"""The detail pane: everything about one device and the processes on it."""
