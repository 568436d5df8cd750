"""The plan pane: what will run."""
