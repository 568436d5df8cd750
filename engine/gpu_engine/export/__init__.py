"""A run's figures, out of its folder: as CSV, for TensorBoard and Weights & Biases."""

TARGETS = ("csv", "tensorboard", "wandb")
