"""The run screen: one run's state, curves, ranks and logs."""
