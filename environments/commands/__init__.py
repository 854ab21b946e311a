"""`vf-rl init`."""
