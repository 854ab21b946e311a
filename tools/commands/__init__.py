"""`vf-rl search`."""
