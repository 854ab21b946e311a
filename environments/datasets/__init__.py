"""Tasks from data: files, Hugging Face datasets, or anything that gives rows."""
