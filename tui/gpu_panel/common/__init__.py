"""What both screens use: rows, choices, dialogs, background work."""
