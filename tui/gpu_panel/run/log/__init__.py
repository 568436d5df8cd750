"""The log pane: which log is shown, its lines however many they are, finding in them."""
