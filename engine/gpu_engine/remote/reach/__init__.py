"""Other machines, from this one: which there are, how they are reached, what is said to them."""
