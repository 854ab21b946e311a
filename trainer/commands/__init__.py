"""The one command, `vf-rl`: its table of commands, training, and what else needs the trainer."""
