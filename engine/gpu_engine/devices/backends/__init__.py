"""The vendors whose devices can be used: `protocol` says what one brings, `registry` lists them."""
