"""The vendors whose devices can be used: `protocol` has the base classes, `registry` the list."""
