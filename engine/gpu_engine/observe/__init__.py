"""Observes a person's own training script from inside its processes, without changing it."""
