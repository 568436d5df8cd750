"""A plan as the YAML with which another platform starts the same run. Pure: nothing is sent."""
