"""What is said of a run: its state, headline, figures, what must be known first. Pure."""
