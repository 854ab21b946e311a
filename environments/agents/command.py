"""A command as an agent: what it consists of, checked before anything starts."""

from __future__ import annotations

import hashlib
import os
import shutil
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vf.environments.agent import AgentEnvironment
from vf.environments.agents import left_behind, placeholders
from vf.environments.agents.attempt import Attempt, Work
from vf.environments.agents.workspaces import LocalWorkspace, SandboxWorkspace, Workspace
from vf.inference.endpoint.address import Endpoint
from vf.runtime.errors import ConfigError
from vf.sandbox.contract import LEFT_OUT
from vf.sandbox.hosting.source import Sandboxes, sandbox_source
from vf.sandbox.source import SandboxSource
from vf.sandbox.spec import SandboxSpec
from vf.tools.episode import Service
from vf.traces.task import Task

_SCRIPTS = (".py", ".sh", ".js", ".mjs", ".ts")


class Program:
    """A command as an agent.

    Its environment holds ``PATH`` and a few other harmless variables of this process, a ``HOME``
    and ``TMPDIR`` of its own, and:

    | | |
    |---|---|
    | ``OPENAI_BASE_URL``, ``OPENAI_API_KEY`` | the endpoint, for OpenAI's clients |
    | ``ANTHROPIC_BASE_URL``, ``ANTHROPIC_API_KEY`` | the same for Anthropic's |
    | ``VF_MODEL`` | the model's name |
    | ``VF_TASK`` | a JSON file with the task's ``id``, ``prompt`` and ``info``, not its answer |

    Its standard output is the result, a ``str``; see
    :func:`vf.environments.agents.program.program` for the arguments.

    Raises:
        ConfigError: If an argument is invalid; the message names it as ``env.args.NAME``.
    """

    home = __name__

    def __init__(
        self,
        command: Sequence[str],
        *,
        sandbox: Sandboxes = "none",
        folder: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        collect: Sequence[str] = (),
        score_command: Sequence[str] = (),
    ) -> None:
        self.folder = _folder(folder)
        self.env = _variables(env or {})
        self.source: SandboxSource | None = None if sandbox == "none" else _source(sandbox)
        self._here = Path.cwd()  # a relative path means what it meant when the program was named
        self.scripts: dict[str, Path] = {}
        self._written = [*command], [*score_command]
        self.command = self._command("command", command)
        self.score_command = self._command("score_command", score_command) if score_command else []
        self.collect = _texts("collect", collect)
        left_behind.check(self.collect, "env.args.collect")

    @property
    def services(self) -> list[Service]:
        """The source of its sandboxes."""
        return [] if self.source is None else [self.source]

    def check(self) -> None:
        """Look whether the program is there, and the variables that it takes over.

        Raises:
            ConfigError: If the agent is not usable here; the message says what to do.
        """
        for name, command in (("command", self.command), ("score_command", self.score_command)):
            if command and self.source is None:
                self._find(name, command[0])
                self._find_script(name, command[1:])

    def sandbox_spec(self, task: Task) -> SandboxSpec | None:
        """Return None: every task has a sandbox as the settings have it."""
        return None

    def attempt(self, task: Task, endpoint: Endpoint, episode: AgentEnvironment) -> Attempt:
        """Return one attempt at a task."""
        workspace: Workspace
        if self.source is None:
            workspace = LocalWorkspace(self.folder)
        else:
            workspace = SandboxWorkspace(
                self.source, self.folder, self.scripts, episode.task_sandbox
            )
        work = Work(self.command, self.env, self.collect, self.score_command)
        return Attempt(work, workspace, task, endpoint, episode.info)

    def measured(self) -> dict[str, Any]:
        """Return the command, and digests of the files that it consists of."""
        folder = [] if self.folder is None else sorted(_walk(self.folder))
        files = {str(path.relative_to(self.folder or "/")): path for path in folder}
        return {
            "commands": self._written,
            "collect": self.collect,
            "env": self.env,
            "sandbox": self.source,
            "files": {name: _digest(path) for name, path in (files | self.scripts).items()},
        }

    def _command(self, name: str, command: Sequence[str]) -> list[str]:
        """Check a command, and make its own files absolute, or note them for the sandbox."""
        where = f"env.args.{name}"
        items = _texts(name, command)
        if not items or not items[0].strip():
            raise ConfigError(f'{where} is empty; write {name} = ["python", "my_agent.py"]')
        placeholders.check(items, where)
        if self.source is not None and items[0] == "python":
            items[0] = "python3"  # which every image has
        if self.folder is not None:
            return items
        first = items[0] if "/" not in items[0] else self._own(items[0])  # else found by PATH
        return [first, *map(self._own, items[1:])]

    def _own(self, item: str) -> str:
        path = self._here / os.path.expanduser(item)
        if not os.path.isfile(path):
            return item
        if self.source is not None and Path(item).is_absolute():  # one of the image's, then
            return item
        self.scripts[item] = path
        return str(path) if self.source is None else item

    def _find(self, name: str, program: str) -> None:
        """Raise ConfigError if there is no such program on this machine."""
        if "/" in program:
            file = (self.folder or self._here) / program
            there = os.access(file, os.X_OK) and file.is_file()
        else:
            path = [sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]
            there = shutil.which(program, path=os.pathsep.join(path)) is not None
        if not there:
            raise ConfigError(
                f"env.args.{name}: there is no program {program!r} that can be run; install it, or "
                "write its path"
            )

    def _find_script(self, name: str, arguments: Sequence[str]) -> None:
        """Raise ConfigError if an interpreter's first argument is a script that is not there."""
        first = arguments[0] if arguments else ""
        script = self._here.joinpath(self.folder or "", first)
        if first.endswith(_SCRIPTS) and not first.startswith("-") and not script.exists():
            raise ConfigError(f"env.args.{name}: there is no file {script}")


def _source(sandbox: Sandboxes) -> SandboxSource:
    try:
        return sandbox_source(sandbox)
    except ConfigError as error:
        raise ConfigError(f'env.args.sandbox: {error}, or "none"') from error


def _folder(folder: str | Path | None) -> Path | None:
    if folder is None:
        return None
    path = Path(folder).expanduser().absolute()
    if not path.is_dir():
        raise ConfigError(f"env.args.folder: there is no folder {path}")
    return path


def _variables(env: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(env, Mapping):
        raise ConfigError(
            f'env.args.env must be a table of texts, {{ NAME = "value" }}, got {env!r}'
        )
    for name, value in env.items():
        if not isinstance(value, str) or "\0" in value:
            raise ConfigError(f"env.args.env.{name} must be a text without NUL, got {value!r}")
        if not name or "=" in name or "\0" in name:
            raise ConfigError(f"env.args.env: {name!r} cannot be the name of a variable")
    return dict(env)


def _texts(name: str, items: Sequence[str]) -> list[str]:
    if not isinstance(items, Sequence) or isinstance(items, str):
        raise ConfigError(f"env.args.{name} must be a list of texts, got {items!r}")
    if not all(isinstance(item, str) and "\0" not in item for item in items):
        raise ConfigError(f"env.args.{name} must be a list of texts without NUL, got {items!r}")
    return list(items)


def _walk(folder: Path) -> list[Path]:
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and not set(path.relative_to(folder).parts) & set(LEFT_OUT)
    ]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]
