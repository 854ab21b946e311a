"""The loss of each token: policy gradients, KL, importance sampling, experts' balance."""
