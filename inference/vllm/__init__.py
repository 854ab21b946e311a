"""A vLLM server alongside the trainer."""
