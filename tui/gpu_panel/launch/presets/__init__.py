"""Presets: opening the first one, loading another, saving what the form says."""
