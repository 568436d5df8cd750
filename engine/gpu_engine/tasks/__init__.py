"""The tasks that come with the engine."""
