"""Writing a new environment's package: names, kinds and templates."""
