"""Other programs, started from the panel: in a pane, or with the terminal to themselves."""
