"""Watching a run: metrics, alarms, the terminal, the report."""
