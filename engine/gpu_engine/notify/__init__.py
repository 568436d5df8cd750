"""Telling a person, away from the screen, what has become of a run."""
