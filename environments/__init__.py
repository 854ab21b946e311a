"""What is asked: environments, the one rollout loop, the registry, evaluation."""
