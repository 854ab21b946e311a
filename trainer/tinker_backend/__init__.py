"""Training on a server of the Tinker API: gradients are computed and tokens are sampled there."""
