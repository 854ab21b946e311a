"""How things run: calling user code, workers, deadlines, seeding, commands, errors."""
