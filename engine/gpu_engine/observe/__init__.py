"""Seeing the ranks of a person's own script, from inside and unchanged."""
