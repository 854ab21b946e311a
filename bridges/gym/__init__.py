"""Gymnasium, both ways: our environments as its, and its games as ours."""
