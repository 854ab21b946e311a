"""How much better a rollout, or a turn of it, was than the others of its task."""
