"""What can be wrong with the engine before anything runs. Every message says how to mend it.

ConfigError
└── EngineProblem
    ├── SdkMissing           the Python package ``docker`` is not installed
    ├── EngineMissing        no engine answers
    ├── EngineForbidden      it answers, but not to this user
    ├── EngineUnsupported    it lacks a feature that the sandbox needs
    ├── ImageMissing         the image is not on this machine
    ├── ImageUnfit           it is, but cannot be hardened, or has no Python 3
    ├── RuntimeUnknown       the engine has no such runtime
    └── LimitNotEnforced     the kernel would ignore one of the limits
"""

from __future__ import annotations

from vf.runtime.errors import ConfigError


class EngineProblem(ConfigError):
    """Containers cannot be run here as asked."""


class SdkMissing(EngineProblem):
    """The Python package ``docker`` is not installed."""


class EngineMissing(EngineProblem):
    """No engine answers at the address."""


class EngineForbidden(EngineProblem):
    """The engine's socket is there, but this user may not use it."""


class EngineUnsupported(EngineProblem):
    """The engine, or the way it is reached, lacks something that the sandbox needs."""


class ImageMissing(EngineProblem):
    """The image is not on this machine. Nothing is ever pulled while a run is under way."""


class ImageUnfit(EngineProblem):
    """The image cannot be used: no Python 3, or it asks for what would weaken the sandbox."""


class RuntimeUnknown(EngineProblem):
    """The engine does not know the runtime."""


class LimitNotEnforced(EngineProblem):
    """The kernel or the engine would ignore a limit, and code could take the host down."""
