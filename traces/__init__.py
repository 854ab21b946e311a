"""What happened: messages, tools, tasks, token branches, scores, and their JSONL store."""
