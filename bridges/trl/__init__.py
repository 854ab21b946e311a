"""vf-rl environments as arguments of TRL's `GRPOTrainer`."""
