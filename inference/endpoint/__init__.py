"""The OpenAI-compatible URL of one rollout, for an agent that is a program."""
