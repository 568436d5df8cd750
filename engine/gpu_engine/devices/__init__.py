"""What there is to run on: found, looked at, judged and leased."""
