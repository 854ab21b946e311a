"""The Tinker API: many LoRA adapters of one model are trained and sampled over HTTP."""
