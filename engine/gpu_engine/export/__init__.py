"""A run's figures, out of its folder: as CSV, for TensorBoard, Weights & Biases and Trackio."""

TARGETS = ("csv", "tensorboard", "wandb", "trackio")
