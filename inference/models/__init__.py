"""The models that answer: a chat API, an engine by token ids, a script, a local model."""
