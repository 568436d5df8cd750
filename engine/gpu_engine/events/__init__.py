"""The events that ranks write about themselves, and the view that a reader builds from them."""
