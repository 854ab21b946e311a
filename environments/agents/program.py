"""Programs as agents: any command that speaks to an OpenAI- or Anthropic-compatible API."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from vf.environments.agent import MAX_TURNS, TIMEOUT, AgentEnvironment, Rows, Tasks
from vf.environments.agents import left_behind, placeholders
from vf.environments.agents.places import LocalPlace, Place, SandboxPlace
from vf.environments.agents.process import Output
from vf.environments.locate import load_object
from vf.inference.endpoint.address import Endpoint
from vf.rubrics.group import AnyRubric
from vf.rubrics.rubric import Rubric
from vf.runtime.errors import ConfigError, RubricError
from vf.sandbox.container.source import Sandboxes, SandboxSource, sandbox_source
from vf.sandbox.contract import LEFT_OUT
from vf.tools.episode import Service
from vf.traces.messages import writable
from vf.traces.task import Task

_LAST_LINES = 3  # of what a program complained, in the message about its crash


class ProgramFailed(Exception):
    """A program ended with an exit code that is not 0."""


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

    Its standard output is the result, a ``str``; see :func:`program` for the arguments.

    Raises:
        ConfigError: An argument cannot be used; names it as ``env.args.NAME``.
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
            ConfigError: It is not; says what to do.
        """
        for name, command in (("command", self.command), ("score_command", self.score_command)):
            if command and self.source is None:
                self._find(name, command[0])

    def attempt(self, task: Task, endpoint: Endpoint, episode: AgentEnvironment) -> _Attempt:
        """Return one attempt at a task."""
        place: Place
        if self.source is None:
            place = LocalPlace(self.folder)
        else:
            place = SandboxPlace(self.source, self.folder, self.scripts)
        return _Attempt(self, place, task, endpoint, episode.info)

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
            found = (self.folder or self._here) / program
            there = os.access(found, os.X_OK) and found.is_file()
        else:
            path = [sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]
            there = shutil.which(program, path=os.pathsep.join(path)) is not None
        if not there:
            raise ConfigError(
                f"env.args.{name}: there is no program {program!r} that can be run; install it, or "
                "write its path"
            )


class _Attempt:
    """A program at work on one task."""

    def __init__(
        self, program: Program, place: Place, task: Task, endpoint: Endpoint, info: dict[str, Any]
    ) -> None:
        self.program, self.place, self.task, self.info = program, place, task, info
        self.endpoint = endpoint
        self.stdout = ""
        self.opened = False

    async def run(self) -> str:
        """Run the program, and return its standard output.

        Raises:
            ProgramFailed: Its exit code is not 0.
        """
        self.endpoint = await self.place.open(self.endpoint)
        self.opened = True
        file = await self.place.write("task.json", self._described())
        values = placeholders.values(self.task, self.endpoint, file)
        command = placeholders.fill(self.program.command, values)
        environ = {**self.endpoint.environ(), "VF_TASK": file, **self.program.env}
        output, code = Output(), None
        try:
            code = await self.place.run(command, environ, output)
        finally:
            self.stdout = writable(output.stdout.text())
            self.info["program"] = self._record(output, code)
            self.info["output"] = self.stdout  # also of one that was stopped
        if code:
            raise ProgramFailed(f"exit code {code}{_complaint(output.stderr.text())}")
        return self.stdout

    async def finish(self) -> None:
        """Read the files that the program left, and run the command that scores them.

        Raises:
            RubricError: That command failed.
        """
        if not self.opened:
            return
        if self.program.collect:
            self.info["files"] = await self.place.files(self.program.collect)
        if self.program.score_command:
            await self._score()

    async def close(self) -> None:
        """Remove the place."""
        await self.place.close()

    async def _score(self) -> None:
        task = await self.place.write("scored_task.json", self._described(answer=True))
        printed = await self.place.write("output.txt", self.stdout)
        values = placeholders.values(self.task, self.endpoint, task)
        output = Output()
        code = await self.place.run(
            placeholders.fill(self.program.score_command, values),
            {
                "VF_TASK": task,
                "VF_OUTPUT": printed,
                "VF_REWARD_URL": self.endpoint.reward_url,
                "VF_REWARD_KEY": self.endpoint.reward_key,
                **self.program.env,
            },
            output,
        )
        if code:
            raise RubricError(
                f"env.args.score_command ended with exit code {code}"
                f"{_complaint(output.stderr.text())}"
            )

    def _described(self, *, answer: bool = False) -> str:
        task = self.task
        described = {"id": task.id, "prompt": task.prompt, "info": task.info}
        return json.dumps(described | {"answer": task.answer} if answer else described)

    def _record(self, output: Output, code: int | None) -> dict[str, Any]:
        found: dict[str, Any] = {"exit_code": code, "stderr": writable(output.stderr.text())}
        if output.stdout.size > output.stdout.most:
            found["stdout_bytes"] = output.stdout.size
        return found


def program(
    command: Sequence[str],
    tasks: Tasks,
    rubric: str | AnyRubric | None = None,
    sandbox: Sandboxes = "none",
    folder: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    collect: Sequence[str] = (),
    score_command: Sequence[str] = (),
    crash: str = "scored",
    timeout: float = TIMEOUT,
    max_turns: int = MAX_TURNS,
    max_tokens: int | None = None,
    model: str = "policy",
    oracle: str | None = None,
) -> AgentEnvironment:
    """Return the environment ``program``: a command that works on tasks.

    Args:
        command: Program and arguments. In these, ``{prompt}``, ``{task}`` (the file in
            ``VF_TASK``), ``{url}``, ``{root}`` (without ``/v1``, for Anthropic's clients),
            ``{key}`` and ``{model}`` are replaced. ``python`` is the one that runs vf-rl. A
            relative path of a file begins at the working directory, or at ``folder``.
        tasks: A file of rows with ``prompt`` and, as far as needed, ``answer``, ``id`` and
            ``info``; from Python, whatever an
            :class:`~vf.environments.agent.AgentEnvironment` takes.
        rubric: Where a rubric, or a function of the trace, is found: ``"module:name"`` or
            ``"file.py:name"``. By default the reward that ``score_command`` reports.
        sandbox: ``"none"`` for a child process in a temporary folder, without protection;
            ``"docker"`` or a table of settings for a container, from which nothing but the
            endpoint can be reached.
        folder: The agent's code: copied for each rollout, as the program's working directory.
        env: Further variables of the program's environment.
        collect: Patterns of files in the working directory that are recorded in
            ``trace.info["files"]``, by path.
        score_command: A second program, run when the first one has ended. Its ``VF_TASK`` holds the
            answer, too, ``VF_OUTPUT`` names a file with the first one's standard output, and it
            reports ``{"reward": 0.5}`` to ``VF_REWARD_URL`` with the key ``VF_REWARD_KEY``.
        crash: What an exit code other than 0 means after the first answer: ``"scored"`` or
            ``"failed"``.
        timeout: Seconds that the program gets, the model's answers not counted.
        max_turns: Most answers of the model in one episode.
        max_tokens: Most tokens sampled in one episode; None for no limit.
        model: The name under which the model is served to the program.
        oracle: Where a function of the task is found that returns what a solving model says.

    Raises:
        ConfigError: An argument cannot be used; names it as ``env.args.NAME``.
    """
    return AgentEnvironment(
        Program(
            command,
            sandbox=sandbox,
            folder=folder,
            env=env,
            collect=collect,
            score_command=score_command,
        ),
        tasks=_tasks(tasks),
        rubric=_rubric(rubric),
        max_turns=max_turns,
        max_tokens=max_tokens,
        timeout=timeout,
        crash=crash,
        model=model,
        oracle=None if oracle is None else load_object(oracle, "env.args.oracle"),
    )


def _tasks(tasks: Tasks) -> Tasks:
    """Return the tasks, with the paths of their files absolute.

    Raises:
        ConfigError: A file is not there.
    """
    if isinstance(tasks, Mapping):
        return {name: cast(Rows, _tasks(each)) for name, each in tasks.items()}
    if not isinstance(tasks, str | Path) or str(tasks).startswith("hf:"):
        return tasks
    path = Path(tasks).expanduser().absolute()
    if not path.is_file():
        raise ConfigError(
            f"env.args.tasks: there is no file {path}; write one with a JSON object a line, such "
            'as {"prompt": "...", "answer": "..."}'
        )
    return path


def _rubric(rubric: str | AnyRubric | None) -> AnyRubric | None:
    if not isinstance(rubric, str):
        return rubric
    found = load_object(rubric, "env.args.rubric")
    if hasattr(found, "score"):
        return found  # type: ignore[no-any-return]
    if callable(found):
        return Rubric(outcome=found)
    raise ConfigError(
        f"env.args.rubric: {rubric!r} is neither a rubric nor a function of the trace, but "
        f"{type(found).__name__}"
    )


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
    for name, value in env.items():
        if not isinstance(value, str):
            raise ConfigError(f"env.args.env.{name} must be a text, got {value!r}")
    return dict(env)


def _texts(name: str, items: Sequence[str]) -> list[str]:
    if isinstance(items, str) or not all(isinstance(item, str) for item in items):
        raise ConfigError(f"env.args.{name} must be a list of texts, got {items!r}")
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


def _complaint(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()]
    return f", after: {' | '.join(lines[-_LAST_LINES:])}" if lines else ""
