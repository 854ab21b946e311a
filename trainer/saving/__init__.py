"""Checkpoints: written, resumed from, compared, exported."""
