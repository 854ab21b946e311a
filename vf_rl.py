"""Any environment of vf-rl, for verifiers and prime-rl, which load it by the id ``vf-rl``.

It has the name of the distribution, which such an id must be; ``env.taskset.environment`` says
which environment.
"""

from typing import Any

import vf

__all__ = ["Env", "Harness", "Taskset"]  # noqa: F822 (made on first use, below)


def __getattr__(name: str) -> Any:
    # On first use: without verifiers, importing this is not an error.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(vf.to_verifiers(), name)
