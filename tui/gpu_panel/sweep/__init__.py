"""The screen of a sweep: its table, and its members' runs."""
