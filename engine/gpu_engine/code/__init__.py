"""A folder of code by its content: read once, kept or sent, and found again by its name."""
