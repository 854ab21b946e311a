"""Unmodified agents, functions or programs, as environments."""
