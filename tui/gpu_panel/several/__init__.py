"""The screen of several runs, of a sweep or chosen by a person: their curves over each other, one
table, and what differs."""
