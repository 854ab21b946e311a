"""reasoning-gym's datasets."""
