"""`vf-rl eval`: models measured in environments, with intervals, limits and exact resume."""
