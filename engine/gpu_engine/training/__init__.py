"""What the engine trains with: data, steps, precision, evaluation, checkpoints."""
