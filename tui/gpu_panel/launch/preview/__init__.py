"""The preview: what the cursor of the list of runs points at, beside or below that list."""
