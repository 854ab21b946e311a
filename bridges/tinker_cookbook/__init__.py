"""Environments for tinker-cookbook's trainer."""
