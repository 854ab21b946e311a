"""Other libraries' environments here, and ours there."""
