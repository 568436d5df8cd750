"""Files, processes, errors, text, figures: used by every other package, and uses none of them."""
