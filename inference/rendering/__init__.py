"""Messages to token ids and back: chat templates, and conversations that only grow."""
