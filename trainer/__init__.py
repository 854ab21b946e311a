"""How the model learns: configuration, the `vf-rl` command, and the RLTrainer."""
