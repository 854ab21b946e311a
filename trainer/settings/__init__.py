"""The TOML: what can be set, read, checked and written."""
