"""`vf-rl eval`."""
