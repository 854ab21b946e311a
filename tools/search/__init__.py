"""Search as tools: the contract of an index, indexes that keep it, tools for any episode."""
