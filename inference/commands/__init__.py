"""`vf-rl check-template`."""
