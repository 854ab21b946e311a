"""Gymnasium: vf-rl environments as Gymnasium's, and Gymnasium's as vf-rl environments."""
