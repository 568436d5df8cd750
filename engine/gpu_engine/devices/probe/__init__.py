"""Talking to a driver from a process of its own, as a call into one may never come back."""
