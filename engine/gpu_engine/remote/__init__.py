"""Other machines: how they are reached, what runs there, and a run over several of them."""
