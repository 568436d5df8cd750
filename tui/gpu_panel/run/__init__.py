"""The run screen: what is known of one run, its curves, ranks and log."""
