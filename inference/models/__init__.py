"""Who answers: a chat API, an engine by token ids, a script, a local model."""
