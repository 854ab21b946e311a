"""Supervised fine-tuning from saved traces."""
