"""A run's figures, out of its folder: as CSV, for TensorBoard and Weights & Biases. And the runs of
a sweep, for Optuna's dashboard."""

TARGETS = ("csv", "tensorboard", "wandb")
