"""What goes to the terminal: a picture of its cells, and only what changed in it."""
