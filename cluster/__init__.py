"""Where a run's processes are: on this machine, or on a cluster under Ray."""
