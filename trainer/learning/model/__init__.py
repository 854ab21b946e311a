"""The model that learns: loading, LoRA, precision, log-probabilities, frozen models."""
