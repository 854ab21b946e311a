"""TextArena's games."""
