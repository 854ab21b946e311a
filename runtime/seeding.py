"""Random seeds that depend on what they are for, and on nothing else."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed that is a pure function of ``parts``.

    Every random choice of a run is seeded from the run's seed and the names of what it is for
    (step, task, rollout, turn). So a result does not depend on the order in which concurrent
    rollouts happen to finish, and a resumed run draws what the unbroken one would have drawn.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
