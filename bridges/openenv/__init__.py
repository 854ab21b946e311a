"""Environments that an OpenEnv server runs."""
