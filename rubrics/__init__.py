"""Scoring: outcomes in [0, 1], process penalties, metrics."""
