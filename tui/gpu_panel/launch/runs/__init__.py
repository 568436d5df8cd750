"""The runs pane: live runs with their figures, earlier ones with how they ended."""
