"""Putting the form's run into the queue: what it waits for, the dialog, what is said then."""
