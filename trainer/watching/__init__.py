"""What a run tells: metrics, alarms, the terminal, the report."""
