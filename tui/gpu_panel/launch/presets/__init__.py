"""Presets: opening the first one, loading another, saving the form as one."""
