"""What a run is made of: its groups, plan, folder, metrics and display."""
