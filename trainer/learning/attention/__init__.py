"""Exact attention over packed sequences with shared prefixes."""
