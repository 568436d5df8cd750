"""What both screens share: rows, choices, dialogs, background work."""
