"""The log pane: which log is shown, its lines however many there are, and searching them."""
