"""From scored groups to new weights: advantages, samples, losses, the policy, its ranks."""
