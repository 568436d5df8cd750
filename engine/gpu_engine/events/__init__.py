"""What a rank says of itself, and what a reader makes of it."""
