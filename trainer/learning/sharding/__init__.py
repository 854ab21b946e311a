"""Several trainer processes as one: ranks, whole copies, FSDP, ZeRO, and their checkpoints."""
