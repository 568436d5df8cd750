"""How torch trains in each mode. Each class is one way of training."""
