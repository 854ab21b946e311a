"""An inference engine on the trainer's own module, behind an OpenAI-compatible API."""
