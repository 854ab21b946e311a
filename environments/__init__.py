"""Environments, the rollout loop and the registry."""
