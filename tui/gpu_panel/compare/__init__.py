"""The compare screen: several runs' curves over each other, their figures, and what differs."""
