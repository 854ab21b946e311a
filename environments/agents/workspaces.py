"""Where an agent's program runs: a folder of this machine, or a sandbox."""

from __future__ import annotations

import os
import secrets
import shutil
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from vf.environments.agents import left_behind
from vf.environments.agents.process import MOST_STDOUT, Output, run_process
from vf.inference.endpoint.address import Endpoint
from vf.runtime.errors import ConfigError, EnvironmentFailure
from vf.runtime.own_deadline import own_deadline
from vf.runtime.temporary import make_temporary_folder, remove_tree
from vf.runtime.workers import in_thread
from vf.sandbox.contract import LEFT_OUT, ExecResult, Sandbox
from vf.sandbox.source import SandboxSource
from vf.sandbox.spec import SandboxSpec
from vf.traces.messages import writable

# Of this process's variables, those that a program gets: what finds programs and reads text.
PASSED_ON = (
    *("PATH", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "SYSTEMROOT"),
)
_FILES = ".vf"  # in a sandbox's working directory, what the program is given
_LONGEST = 7 * 24 * 3600.0  # seconds: who waits has a clock of its own


class Workspace(Protocol):
    """Where one attempt's program runs. Every method may raise a SandboxError."""

    async def open(self, endpoint: Endpoint) -> Endpoint:
        """Create the workspace with the agent's code in it; return the endpoint as seen from it."""
        ...

    @property
    def lost(self) -> str:
        """Why it is no longer usable, such as an exhausted memory limit; empty while it is."""
        ...

    async def write(self, name: str, text: str) -> str:
        """Write a file into a new folder, and return its path.

        Raises:
            OSError: If the programs that ran here left no room for it, say.
        """
        ...

    async def stop(self) -> None:
        """End what programs have left running.

        Raises:
            OSError: If one of them does not end.
        """
        ...

    async def own_files(self, command: Sequence[str]) -> list[str]:
        """Return a command that runs its own files as they were, whatever became of them here.

        Raises:
            OSError: If they cannot be written.
        """
        ...

    async def run(self, command: Sequence[str], environ: Mapping[str, str], output: Output) -> int:
        """Run a program to completion, fill its output meanwhile, and return its exit code.

        Cancelled, the program is ended with everything that it started.
        """
        ...

    async def files(self, patterns: Sequence[str]) -> dict[str, str]:
        """Return the files in the working directory that match, as text."""
        ...

    async def close(self) -> None:
        """Remove it with everything in it."""
        ...


class LocalWorkspace:
    """A temporary folder: no protection, but a home of its own, and none of this process's keys.

    Args:
        code: A folder that is copied and becomes the working directory; None for an empty one.
    """

    def __init__(self, code: Path | None) -> None:
        self._code = code
        self._folders: list[Path] = []
        self._work = Path()
        self.lost = ""

    def _new(self) -> Path:
        """Make a folder that no program has seen: what it does to its own harms no other."""
        self._folders.append(make_temporary_folder("agent"))
        return self._folders[-1]

    async def open(self, endpoint: Endpoint) -> Endpoint:
        """Make the folder."""
        self._work = await in_thread(self._new) / "work"  # the first also removes abandoned ones
        await in_thread(self._fill)
        return endpoint

    def _fill(self) -> None:
        if self._code is None:
            self._work.mkdir()
        else:
            ignored = shutil.ignore_patterns(*LEFT_OUT)
            shutil.copytree(self._code, self._work, symlinks=True, ignore=ignored)

    async def write(self, name: str, text: str) -> str:
        """Write a file into a folder of its own."""
        path = self._new() / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    async def stop(self) -> None:
        """Do nothing: with a program's guard, all that it started has ended."""

    async def own_files(self, command: Sequence[str]) -> list[str]:
        """Put those of a copied folder back; others are where they always were."""
        for item in command:
            if (original := _original(self._code, item)) is not None:
                path = self._work / item
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                shutil.copy(original, path)
        return list(command)

    async def run(self, command: Sequence[str], environ: Mapping[str, str], output: Output) -> int:
        """Run a child process, with a guard, and a home of its own.

        Raises:
            OSError: If the working directory is no longer a directory.
        """
        self._work.mkdir(parents=True, exist_ok=True)
        home, temporary = self._new(), self._new()
        own = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        own["PATH"] = os.pathsep.join(
            filter(None, [sysconfig.get_path("scripts"), own.get("PATH", os.defpath)])
        )
        own |= {"HOME": str(home), "TMPDIR": str(temporary)}
        return await run_process(
            command, folder=self._work, environ=own | dict(environ), output=output
        )

    async def files(self, patterns: Sequence[str]) -> dict[str, str]:
        """Read them."""

        def read() -> dict[str, str]:
            paths = left_behind.chosen(left_behind.listed(self._work), patterns)
            contents = {path: left_behind.read(self._work, path) for path in paths}
            return {
                writable(path): left_behind.as_text(data)
                for path, data in contents.items()
                if data is not None
            }

        files: dict[str, str] = await in_thread(read)
        return files

    async def close(self) -> None:
        """Remove the folders, whatever programs have done to their permissions."""
        while self._folders:
            await in_thread(remove_tree, self._folders.pop())


class SandboxWorkspace:
    """A sandbox, in which nothing can be reached but the endpoint.

    Args:
        source: The source of sandboxes.
        code: A folder that is copied into its working directory; None for none.
        scripts: Files of this machine that are copied there, by their path inside.
        spec: The specification; None for the source's own settings.
    """

    def __init__(
        self,
        source: SandboxSource,
        code: Path | None,
        scripts: Mapping[str, Path],
        spec: SandboxSpec | None = None,
    ) -> None:
        self._source, self._code, self._scripts = source, code, scripts
        self._spec = spec
        self._stack = AsyncExitStack()
        self._sandbox: Sandbox | None = None
        self._folder = ""  # the working directory
        self._written = 0
        self.lost = ""

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox.

        Raises:
            EnvironmentFailure: If the sandbox is not open.
        """
        if self._sandbox is None:
            raise EnvironmentFailure("the sandbox of the agent's program is not open")
        return self._sandbox

    async def open(self, endpoint: Endpoint) -> Endpoint:
        """Open it, and lead a port of its loopback to the endpoint."""
        with own_deadline():  # a sandbox has one, and an agent cannot help how long it takes
            sandbox = await self._stack.enter_async_context(self._source.open(self._spec))
        self._sandbox = sandbox
        try:
            if self._code is not None:
                await sandbox.upload(self._code)
            for name, path in self._scripts.items():
                await sandbox.write_file(name, await in_thread(path.read_bytes))
            self._folder = (await sandbox.exec(["pwd"])).stdout.strip()
            url = urlsplit(endpoint.url)
            port = await sandbox.forward((url.hostname or "", url.port or 80))
        except (OSError, ValueError) as error:
            raise ConfigError(f"the agent's code cannot be put into a sandbox: {error}") from error
        return replace(endpoint, url=url._replace(netloc=f"127.0.0.1:{port}").geturl())

    async def write(self, name: str, text: str | bytes) -> str:
        """Write a file into a new folder below the working directory."""
        self._written += 1
        path = f"{self._folder}/{_FILES}/{self._written}-{secrets.token_hex(4)}/{name}"
        await self.sandbox.write_file(path, text)
        return path

    async def stop(self) -> None:
        """Kill what the program left running: it would see the next program's key and files."""
        from vf.sandbox.session_sandbox import SessionSandbox

        if isinstance(self.sandbox, SessionSandbox):
            await self.sandbox.end_programs()

    async def own_files(self, command: Sequence[str]) -> list[str]:
        """Put those of a copied folder back, and write others where no program has been."""
        items = []
        for item in command:
            script = self._scripts.get(item)
            original = _original(self._code, item)
            if script is not None:
                item = await self.write(item, await in_thread(script.read_bytes))
            elif original is not None:
                await self.sandbox.write_file(item, await in_thread(original.read_bytes))
            items.append(item)
        return items

    async def run(self, command: Sequence[str], environ: Mapping[str, str], output: Output) -> int:
        """Run a program in it."""
        result = await self.sandbox.exec(
            list(command), env=environ, timeout=_LONGEST, max_output=MOST_STDOUT
        )
        self.lost = _lost(result)
        output.stdout.add(result.stdout.encode())
        output.stderr.add("\n".join(filter(None, [result.stderr, self.lost])).encode())
        return result.returncode

    async def files(self, patterns: Sequence[str]) -> dict[str, str]:
        """Read them; a sandbox that the program has ended holds none."""
        finding = ["find", ".", "-type", "f", "-not", "-path", f"./{_FILES}/*", "-print0"]
        listing = await self.sandbox.exec(finding, max_output=10_000_000)
        paths = [path.removeprefix("./") for path in listing.stdout.split("\0")]
        files: dict[str, str] = {}
        for path in left_behind.chosen(paths, patterns):
            try:
                data = await self.sandbox.read_file(path)
            except (OSError, ValueError):
                continue
            files[path] = left_behind.as_text(data)
        return files

    async def close(self) -> None:
        """Destroy it."""
        self._sandbox = None
        await self._stack.aclose()


def _original(code: Path | None, item: str) -> Path | None:
    """Return the file of a folder that an argument names, if it does."""
    if code is None or Path(item).is_absolute() or not (code / item).is_file():
        return None
    return code / item


def _lost(result: ExecResult) -> str:
    causes = {"oom_killed": "out of memory", "ended": "the sandbox has ended"}
    return "\n".join(f"[{text}]" for name, text in causes.items() if getattr(result, name))
