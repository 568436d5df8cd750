"""Texts about a run: its state, headline, figures, banner and details. Pure."""
