"""Tasks from data: files, Hugging Face datasets, or any iterable of rows."""
