"""Agents as they are, a function or a program, as environments."""
