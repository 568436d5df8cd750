"""A place for torch, where no interpreter near by has it: the offer and its installation."""
