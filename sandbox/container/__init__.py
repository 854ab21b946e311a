"""Sandboxes in Docker containers: the engine, the hardened profile, the held-open stream."""
