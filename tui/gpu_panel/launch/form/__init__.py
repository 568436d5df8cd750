"""The form pane: what is trained and how."""
