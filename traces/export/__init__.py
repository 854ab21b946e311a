"""Traces for other tools: OpenAI chat JSONL and Parquet, and both read back."""
