"""`vf-rl sandbox`."""
