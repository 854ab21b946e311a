"""Tools that run in a sandbox, for any environment: Python, a shell, files.

    class Sums(vf.Environment):
        def __init__(self) -> None:
            source = vf.sandbox_source("docker")
            self.tools = [vf.PythonTool(source), vf.FileTools(source)]

The tools of an episode that have the same source share one sandbox. It is opened at the first call
and closed however the episode ends. A failing command, a timeout, a missing file, and a sandbox
that the model's own code took down, is reported to the model; a sandbox that is lost for another
reason ends the rollout without a reward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vf.runtime.errors import ConfigError, ToolError
from vf.sandbox.call import NOTE
from vf.sandbox.contract import ExecResult, OpenSandbox, Sandbox
from vf.sandbox.source import SandboxSource, given_source
from vf.tools.episode import Episode, Service
from vf.tools.episode_sandbox import EpisodeSandbox, Run

MAX_FILE = 2**20  # bytes of a file that the model may read or write
MAX_LISTED = 200  # names in a listing
LISTING = 2**20  # bytes of a listing that are fetched
LONGEST_PATH = 4096  # bytes; the kernel takes no longer one


class _CodeTool:
    """Shared by the tools that run code: limits, and the text of a result."""

    def __init__(
        self,
        source: SandboxSource | OpenSandbox,
        *,
        timeout: float = 10.0,
        max_output: int = 4000,
    ) -> None:
        name = type(self).__name__
        self.source = given_source(source)
        self.services: Sequence[Service] = [self.source]
        self.timeout = _positive(name, "timeout", timeout)
        self.max_output = int(_positive(name, "max_output", max_output))

    async def run(self, episode: Episode, run: Run) -> str:
        box = EpisodeSandbox.of(episode, self.source)
        return describe(await box.run(episode, run, self.timeout), self.max_output)


class PythonTool(_CodeTool):
    """The tool ``python``: an interpreter whose variables live as long as the episode.

    Args:
        source: The source of the episode's sandbox, or a function that opens one.
        timeout: Seconds for one call.
        max_output: Characters of output that the model sees.

    Raises:
        ConfigError: If a limit is not positive.
    """

    def bind(self, episode: Episode) -> Sequence[Callable[..., Any]]:
        """Return the tool for one episode."""
        return [_Code(self, episode).python]


class BashTool(_CodeTool):
    """The tool ``bash``: a shell whose directory and variables live as long as the episode.

    Args:
        source: The source of the episode's sandbox, or a function that opens one.
        timeout: Seconds for one call.
        max_output: Characters of output that the model sees.

    Raises:
        ConfigError: If a limit is not positive.
    """

    def bind(self, episode: Episode) -> Sequence[Callable[..., Any]]:
        """Return the tool for one episode."""
        return [_Code(self, episode).bash]


@dataclass(frozen=True, slots=True)
class _Code:
    tool: _CodeTool
    episode: Episode

    async def python(self, code: str) -> str:
        """Run Python code. Variables stay between calls; the value of a last expression is shown.

        Args:
            code: The code.
        """
        return await self.tool.run(self.episode, lambda box, limit: box.python(code, timeout=limit))

    async def bash(self, command: str) -> str:
        """Run a shell command. The directory and variables stay between calls.

        Args:
            command: The command.
        """
        return await self.tool.run(
            self.episode, lambda box, limit: box.bash(command, timeout=limit)
        )


class FileTools:
    """The tools ``list_files``, ``read_file``, ``write_file`` and ``edit_file``.

    Args:
        source: The source of the episode's sandbox, or a function that opens one.
        max_output: Characters of a file that the model sees in one call.

    Raises:
        ConfigError: If a limit is not positive.
    """

    def __init__(self, source: SandboxSource | OpenSandbox, *, max_output: int = 8000) -> None:
        self.source = given_source(source)
        self.services: Sequence[Service] = [self.source]
        self.max_output = int(_positive("FileTools", "max_output", max_output))

    def bind(self, episode: Episode) -> Sequence[Callable[..., Any]]:
        """Return the tools for one episode."""
        files = _Files(self, episode)
        return [files.list_files, files.read_file, files.write_file, files.edit_file]


class _Files:
    def __init__(self, settings: FileTools, episode: Episode) -> None:
        self.settings, self.episode = settings, episode

    async def list_files(self, path: str = ".") -> str:
        """List a directory.

        Args:
            path: The directory.
        """
        _checked(path)

        async def run(sandbox: Sandbox, limit: float) -> ExecResult:
            command = ["ls", "-1Ap", "--", path]
            return await sandbox.exec(command, timeout=limit, max_output=LISTING)

        result = await self._box.run(self.episode, run, 10.0)
        if not result.ok:
            problem = clip(result.stderr.strip(), self.settings.max_output)[0]
            raise ToolError(problem or f"cannot list {path}")
        names = result.stdout.splitlines()
        if len(names) > MAX_LISTED:
            more = (
                "too many more to count" if result.truncated else f"{len(names) - MAX_LISTED} more"
            )
            names[MAX_LISTED:] = [f"[{more}]"]
        return clip("\n".join(names), self.settings.max_output)[0] or "(empty)"

    async def read_file(self, path: str, first_line: int = 1, lines: int = 400) -> str:
        """Read a text file.

        Args:
            path: The file.
            first_line: The first line to read; 1 is that of the file.
            lines: The number of lines.
        """
        if first_line < 1 or lines < 1:
            raise ToolError("first_line and lines must be at least 1")
        text = await self._box.use(lambda sandbox: _read(sandbox, path))
        every = text.splitlines(keepends=True)
        if not every:
            return "(the file is empty)"
        if first_line > len(every):
            raise ToolError(f"{path} has only {len(every)} lines")
        shown = every[first_line - 1 : first_line - 1 + lines]
        part, _ = clip("".join(shown), self.settings.max_output)
        if len(shown) == len(every):
            return part
        last = first_line + len(shown) - 1
        return f"{part.rstrip()}\n[lines {first_line} to {last} of {len(every)}]"

    async def write_file(self, path: str, content: str) -> str:
        """Write a text file. An old one is replaced; missing directories are made.

        Args:
            path: The file.
            content: All of its text.
        """
        await self._box.use(lambda sandbox: _write(sandbox, path, content))
        return f"Wrote {path}: {len(content.splitlines())} lines."

    async def edit_file(self, path: str, old: str, new: str) -> str:
        """Replace a piece of a text file.

        Args:
            path: The file.
            old: The text to replace, exactly as it is in the file; it must be there once.
            new: The text to put in its place.
        """
        if not old:
            raise ToolError("old is empty; to make a new file, use write_file")

        async def edit(sandbox: Sandbox) -> None:
            text = await _read(sandbox, path, exact=True)
            if (count := text.count(old)) != 1:
                raise ToolError(f"old is in {path} {count} times, and must be there once")
            await _write(sandbox, path, text.replace(old, new))

        await self._box.use(edit)
        return f"Edited {path}."

    @property
    def _box(self) -> EpisodeSandbox:
        return EpisodeSandbox.of(self.episode, self.settings.source)


def describe(result: ExecResult, max_chars: int) -> str:
    """Return how a command or a piece of code ended, as short text for the model.

    Args:
        result: The result of the command.
        max_chars: Characters kept of stdout, and of stderr: head and tail.
    """
    out, cut_out = clip(result.stdout.rstrip("\n"), max_chars)
    err, cut_err = clip(result.stderr.rstrip("\n"), max_chars)
    parts = [part for part in (out, err and f"stderr:\n{err}" if out else err) if part]
    if result.truncated or cut_out or cut_err:
        parts.append("[the output was too long: a part of it is missing]")
    if result.timed_out:
        parts.append(f"[timed out after {result.duration:.1f} s]")
    elif result.oom_killed:
        parts.append("[out of memory: killed at the sandbox's limit]")
    elif result.returncode:
        parts.append(f"[exit code {result.returncode}]")
    return "\n".join(parts) or "(no output)"


def clip(text: str, max_chars: int) -> tuple[str, bool]:
    """Return the text's head and tail with a line between them, and whether any is missing."""
    if len(text) <= max_chars:
        return text, False
    head, tail = max_chars - max_chars // 2, len(text) - max_chars // 2
    for note in NOTE.finditer(text):  # what says that output is missing is cut out, not through
        head = note.start() if note.start() < head < note.end() else head
        tail = note.end() if note.start() < tail < note.end() else tail
    return f"{text[:head]}\n[{tail - head} characters left out]\n{text[tail:]}", True


async def _read(sandbox: Sandbox, path: str, *, exact: bool = False) -> str:
    _checked(path)
    try:
        content = await sandbox.read_file(path, max_bytes=MAX_FILE)
        return content.decode("utf-8", "strict" if exact else "replace")
    except UnicodeDecodeError:
        raise ToolError(f"{path} is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        raise ToolError(_reason(error, path)) from error


async def _write(sandbox: Sandbox, path: str, content: str) -> None:
    _checked(path)
    data = content.encode("utf-8", "replace")
    if len(data) > MAX_FILE:
        raise ToolError(f"the content is {len(data)} bytes; at most {MAX_FILE} can be written")
    try:
        await sandbox.write_file(path, data)
    except (OSError, ValueError) as error:
        raise ToolError(_reason(error, path)) from error


def _reason(error: Exception, path: str) -> str:
    match error:
        case FileNotFoundError():
            return f"there is no file {path}"
        case IsADirectoryError():
            return f"{path} is a directory"
        case NotADirectoryError():
            return f"a part of {path} is not a directory"
        case PermissionError():
            return f"permission denied: {path}"
        case OSError():
            return f"{path}: {error.strerror or error}"
        case _:
            return f"{path}: {error}"


def _checked(path: str) -> None:
    if not path.strip() or "\0" in path:
        raise ToolError("path must not be empty")
    if len(path.encode("utf-8", "replace")) > LONGEST_PATH:
        raise ToolError(f"path is longer than {LONGEST_PATH} bytes")


def _positive(tool: str, name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigError(f"{tool}: {name} must be a positive number, got {value!r}")
    return value
