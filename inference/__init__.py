"""Inference: models over OpenAI-compatible APIs, chat-template renderers, and engines."""
