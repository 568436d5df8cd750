"""Training: data, the loop, precision, evaluation, checkpoints."""
