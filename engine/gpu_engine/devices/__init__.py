"""The devices of this machine: finding them, reading them, judging and leasing them."""
