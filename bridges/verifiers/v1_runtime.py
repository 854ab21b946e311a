"""verifiers' ``Runtime`` in a sandbox of vf-rl: where a v1 task's commands run and its files are.

verifiers' default runtime is the host. This one is the episode's own sandbox, opened at the first
use. Tasks run what a model wrote in it, so whatever happens to a program is a result, and the
programs of an episode together get half of its time.
"""

from __future__ import annotations

from typing import Literal

from verifiers.v1.errors import SandboxError as TheirSandboxError
from verifiers.v1.runtimes import ProgramResult, Runtime
from verifiers.v1.runtimes.base import BaseRuntimeInfo

from vf.runtime.errors import ConfigError, EnvironmentFailure
from vf.sandbox.contract import ExecResult, Sandbox
from vf.tools.episode import Episode
from vf.tools.episode_sandbox import EpisodeSandbox

MOST_OUTPUT = 8 * 2**20  # bytes of a program's output: more is cut in the middle
MOST_READ = 50 * 2**20  # bytes of a file


class SandboxInfo(BaseRuntimeInfo):  # type: ignore[misc]
    """The kind of the runtime; its settings are the sandbox's."""

    type: Literal["vf-rl"] = "vf-rl"


class SandboxRuntime(Runtime):  # type: ignore[misc]
    """A runtime whose programs and files are in an episode's sandbox.

    Args:
        sandbox: The sandbox, which the episode closes.
        episode: The episode, whose time limit programs share.
        env: Variables of all programs.
    """

    def __init__(self, sandbox: EpisodeSandbox, episode: Episode, env: dict[str, str]) -> None:
        super().__init__()
        self.config = self.info = SandboxInfo()
        self.env = env
        self._sandbox, self._episode = sandbox, episode

    async def start(self) -> None:
        """Do nothing: the sandbox is opened when it is first needed."""

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Run a program to completion, or to the end of the episode's time for programs."""

        async def execute(sandbox: Sandbox, limit: float) -> ExecResult:
            return await sandbox.exec(
                argv, env=self.process_env(env), timeout=limit, max_output=MOST_OUTPUT
            )

        done = await self._sandbox.run(self._episode, execute, self._episode.timeout)
        return ProgramResult(done.returncode, done.stdout, done.stderr)

    async def has_ended(self) -> bool:
        """Return whether a program has ended the sandbox itself."""
        if not self._sandbox.opened:
            return False
        return (await self._sandbox.use(lambda box: box.exec(["true"]))).ended

    async def run_background(self, argv: list[str], env: dict[str, str], log: str) -> None:
        """Start a program whose output goes to a file; it ends with the sandbox."""
        command = ["sh", "-c", 'log=$1; shift; exec "$@" >"$log" 2>&1', "sh", log, *argv]
        await self._sandbox.use(lambda box: box.start(command, env=self.process_env(env)))

    async def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Read a file.

        Raises:
            verifiers.v1.errors.SandboxError: If it is larger than ``max_bytes``, or cannot be read.
            OSError: If it cannot be read, and ``max_bytes`` is None.
        """
        if max_bytes is None:
            return await self._read(path)
        try:
            return await self._sandbox.use(lambda box: box.read_file(path, max_bytes=max_bytes))
        except (OSError, ValueError) as error:
            raise TheirSandboxError(f"read {path!r}: {error}") from error

    async def _read(self, path: str) -> bytes:
        return await self._sandbox.use(lambda box: box.read_file(path, max_bytes=MOST_READ))

    async def write(self, path: str, data: bytes) -> None:
        """Write a file, with its parent folders."""
        await self._sandbox.use(lambda box: box.write_file(path, data))

    async def prepare_uv_script(
        self, script: str | bytes, env: dict[str, str] | None = None, *, activate: bool = True
    ) -> list[str]:
        """Install a script's packages; return the command that runs it.

        Raises:
            EnvironmentFailure: If they cannot be installed: sandboxes have no network by default.
        """
        try:
            command: list[str] = await super().prepare_uv_script(script, env, activate=activate)
        except RuntimeError as error:
            raise EnvironmentFailure(
                f"{error}. A uv script downloads uv and packages, so the sandbox needs an image "
                'that has pip, the network and room: sandbox = { image = "...", allow = '
                '["pypi.org", "files.pythonhosted.org"], memory = ..., workspace = ... }'
            ) from error
        return command

    def host_url(self, url: str) -> str:
        """Raise a ConfigError: programs in the sandbox reach no server of this machine."""
        raise ConfigError(f"programs in the sandbox cannot reach {url}, a server outside of it")

    async def expose(self, port: int) -> str | None:
        """Raise a ConfigError: nothing outside reaches a server in the sandbox."""
        raise ConfigError(f"port {port} of the sandbox cannot be reached from outside of it")
