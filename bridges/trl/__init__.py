"""Any of our environments as what TRL's `GRPOTrainer` takes."""
