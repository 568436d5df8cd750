"""What every room may lean on: files, processes, errors, text, figures. Imports no other room."""
