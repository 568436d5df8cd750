"""Tasks that come with the engine."""
