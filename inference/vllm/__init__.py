"""A vLLM server beside the trainer."""
