"""The contract without any protection: processes of this machine, as this user."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import Self

from vf.runtime.errors import ConfigError, SandboxError
from vf.runtime.temporary import remove_tree
from vf.sandbox.child import READ_AHEAD, START_TIMEOUT, end
from vf.sandbox.contract import Limits
from vf.sandbox.session import Session
from vf.sandbox.session_sandbox import SessionSandbox

_numbers = itertools.count(1)


class UnsafeLocalSandbox(SessionSandbox):
    """Runs code on this machine, as this user, without any protection.

    For trusted code: tests, and machines without a container engine. It has the same supervisor as
    a container, so timeouts kill everything, and the answers are the same. Its working directory
    and home are new, and removed at the end; of this process's variables code gets ``PATH`` only.
    Everything ends with this process, for any reason. Linux only.

    It is made by ``async with UnsafeLocalSandbox(unsafe_local=True) as sandbox``, or by
    :meth:`open`. ``exec`` takes no other user than its own.

    Args:
        unsafe_local: Must be True: you have read the above.
        limits: The limits, of which ``memory`` limits each process (its data: what does not fit is
            a MemoryError there, not ``oom_killed``), ``workspace`` each file, and ``lifetime``
            everything. The others are not enforced.

    Attributes:
        name: Its name in error messages.

    Raises:
        ConfigError: If ``unsafe_local`` is not True, or this is not Linux.
    """

    def __init__(self, *, unsafe_local: bool = False, limits: Limits | None = None) -> None:
        if unsafe_local is not True:
            raise ConfigError(
                "UnsafeLocalSandbox runs code on this machine without any protection. For code "
                "from a model, use containers: vf.open_sandbox(), or "
                'sandbox = "docker" in an environment. For trusted code, say unsafe_local=True'
            )
        if not sys.platform.startswith("linux"):
            raise ConfigError(f"UnsafeLocalSandbox needs Linux, and this is {sys.platform}")
        super().__init__(f"unsafe-local-{os.getpid()}-{next(_numbers)}")
        self._limits = limits or Limits()
        self._root: Path | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def open(self) -> Self:
        """Start it; return itself. ``async with`` does this.

        Raises:
            SandboxError: If it does not start.
            ValueError: If it was started before.
        """
        if self._root is not None:
            raise ValueError(f"{self.name} was started before")
        self._root = Path(tempfile.mkdtemp(prefix="vf-unsafe-local-"))
        try:
            process = self._process = await self._spawn(self._root)
            assert process.stdin is not None
            assert process.stdout is not None
            session = Session(process.stdout, process.stdin, name=self.name, cause=self._cause)
            self._session = session
            await session.begin(timeout=START_TIMEOUT)
        except BaseException as error:
            await self.close()
            if isinstance(error, OSError):
                raise SandboxError(f"{self.name} did not start: {error}") from error
            raise
        return self

    async def _spawn(self, root: Path) -> asyncio.subprocess.Process:
        for name in ("work", "tmp"):
            (root / name).mkdir()
        limits = self._limits
        rlimits = {"CORE": 0, "DATA": limits.memory, "FSIZE": limits.workspace}
        flags = ["--workdir", str(root / "work"), "--home", str(root / "work")]
        flags += ["--lifetime", str(limits.lifetime), "--parent", str(os.getpid())]
        flags += ["--remove", str(root)]
        for name, value in rlimits.items():
            flags += ["--rlimit", f"{name}={value}"]
        source = (resources.files("vf.sandbox") / "supervisor.py").read_text("utf-8")
        with (root / "log").open("wb") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                *("-I", "-S", "-c", source, *flags),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=root,
                env=_environment(root),
                start_new_session=True,  # Ctrl-C is for this process, which then ends it
                limit=READ_AHEAD,
            )

    async def _cause(self) -> str:
        """Return why the supervisor ended."""
        assert self._process is not None
        assert self._root is not None
        code = await self._process.wait()
        with contextlib.suppress(OSError):
            if stderr := (self._root / "log").read_text("utf-8", "replace").strip():
                return f"exit code {code}: {stderr[-2000:]}"
        return f"exit code {code}"

    async def _outside(self) -> str | None:
        """Return None: code can always have ended the supervisor, which nothing protects."""
        return None

    async def _close(self) -> None:
        if self._session is not None:
            await self._session.close()
        if self._process is not None:
            await end(self._process)
        if self._root is not None:
            await asyncio.to_thread(remove_tree, self._root)

    async def __aenter__(self) -> Self:
        """Start, and return itself."""
        return await self.open()


def _environment(root: Path) -> dict[str, str]:
    """Return the variables of code: of this process's only PATH, since others may hold keys."""
    path = os.environ.get("PATH", os.defpath)
    return {
        "PATH": f"{Path(sys.executable).parent}:{path}",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(root / "tmp"),
    }
