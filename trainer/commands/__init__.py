"""The one command, `vf-rl`: training and its subcommands, a module each."""
