"""Grading a model's patch in a container that the model has never seen."""

from __future__ import annotations

import asyncio
import secrets
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from vf.bridges.swe.commands import ACTIVATE, command_of, reading_of, test_files
from vf.bridges.swe.patches import Kept, keep, touched
from vf.bridges.swe.results import Receiver, Results, parse_output
from vf.bridges.swe.rows import Instance
from vf.runtime.errors import EnvironmentFailure
from vf.sandbox.contract import ExecResult, Sandbox
from vf.traces.messages import writable

_GIT = "git -c safe.directory='*' -c core.quotePath=false -c core.fsmonitor=false"
_STEP_TIMEOUT = 120.0  # seconds for each step around the tests
_TAKE_TIMEOUT = 60.0  # seconds for the patch to be made; a model could make it take longer
_LAST_WORDS = 5.0  # seconds until a report that was sent has arrived
_MOST_OUTPUT = 16 * 2**20  # bytes of printed results
_KEPT_OUTPUT = 4000  # characters in the trace: the last ones
_KEPT_PATCH = 100_000  # bytes in the trace
_MOST_FAILED = 100  # names in the trace
_APPLY = "apply --whitespace=nowarn"


@dataclass(frozen=True, slots=True)
class Start:
    """A repository as the model finds it.

    Attributes:
        tree: The tree of its files, by git's name.
        untracked: Paths that are there and not part of it, such as an environment.
    """

    tree: str
    untracked: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the judgement of instances.

    Attributes:
        workdir: The path of the repository in the image.
        command: The line that runs the tests; None for the row's, or that of its repository.
        before_tests: A line that runs before, when the patch has been applied.
        timeout: Seconds that the tests may take.
        max_patch: Bytes of a patch.
    """

    workdir: str = "/testbed"
    command: str | None = None
    before_tests: str = ""
    timeout: float = 900.0
    max_patch: int = 2**20


@dataclass(slots=True)
class Verdict:
    """The quality of a patch.

    Attributes:
        must_pass: Share of the tests that the repair must make pass, and that do.
        keep_passing: Share of the tests that must keep passing, and do; 1 if there are none.
        problem: Why it could not be judged by its tests, or is not to be trusted; usually empty.
        dropped: Files whose changes were left out, with the reasons.
        failed: Names of tests that should pass and do not.
        output: The end of what the tests printed.
    """

    must_pass: float = 0.0
    keep_passing: float = 0.0
    problem: str = ""
    dropped: tuple[tuple[str, str], ...] = ()
    failed: list[str] = field(default_factory=list)
    output: str = ""

    @property
    def resolved(self) -> bool:
        """Whether everything that should pass does."""
        return not self.problem and self.must_pass == 1.0 and self.keep_passing == 1.0


async def begin(sandbox: Sandbox, instance: Instance, settings: Settings) -> Start:
    """Prepare a fresh container for the model, and record the state of its repository.

    Raises:
        EnvironmentFailure: If the image does not match the row.
        SandboxError: If the sandbox is lost.
    """
    await _break(sandbox, instance, settings)
    hidden = [path for path in instance.hidden if path]
    if hidden:
        await _run_step(
            sandbox, ["rm", "-rf", "--", *hidden], settings, "its tests cannot be hidden"
        )
    script = f"""
set -e
export GIT_INDEX_FILE=$(mktemp)
cp "$({_GIT} rev-parse --absolute-git-dir)/index" "$GIT_INDEX_FILE"
{_GIT} add -u
{_GIT} write-tree
rm -f "$GIT_INDEX_FILE"
"""
    tree = (await _run_step(sandbox, script, settings, "it holds no git repository")).stdout.strip()
    forget = f"""
set -e
{_GIT} ls-files -z --others --exclude-standard --directory --no-empty-directory
if [ -n "$({_GIT} rev-list --all --reflog --not HEAD -n 1)" ]; then
  branch=$({_GIT} symbolic-ref -q HEAD || true)
  {_GIT} for-each-ref --format='%(refname)' | while read -r ref; do
    [ "$ref" = "$branch" ] || {_GIT} update-ref --no-deref -d "$ref"
  done
  {_GIT} remote | while read -r remote; do {_GIT} remote remove "$remote"; done
  folder=$({_GIT} rev-parse --absolute-git-dir)
  rm -f "$folder"/*_HEAD
  {_GIT} reflog expire --expire=now --expire-unreachable=now --all
  {_GIT} repack -adq
  {_GIT} prune --expire=now
fi >&2
"""
    listed = await _run_step(sandbox, forget, settings, "its later history cannot be removed")
    untracked = tuple(path for path in listed.stdout.split("\0") if path)
    return Start(tree, untracked)


async def take(sandbox: Sandbox, start: Start, settings: Settings) -> tuple[bytes, str]:
    """Return the patch from the start to the model's state, and why there is none.

    The patch is untrusted, since the model may have changed ``git``: it is only ever applied, and
    only after :func:`~vf.bridges.swe.patches.keep` has checked it.

    Raises:
        SandboxError: If the sandbox is lost for a reason that the model did not cause.
    """
    folder = f"/tmp/vf-{secrets.token_hex(8)}"
    without = " ".join(shlex.quote(f":(exclude,literal){path}") for path in start.untracked)
    script = f"""
set -e
mkdir {folder}
export GIT_INDEX_FILE={folder}/index
{_GIT} read-tree {start.tree}
{_GIT} -c core.excludesFile=/dev/null add -A -- . {without}
{_GIT} diff --cached --binary --no-color --no-ext-diff --no-textconv --no-renames \
  --src-prefix=a/ --dst-prefix=b/ {start.tree} > {folder}/patch
"""
    result = await sandbox.exec(
        ["/bin/sh", "-c", script], cwd=settings.workdir, timeout=_TAKE_TIMEOUT
    )
    if not result.ok:
        return b"", f"no patch could be made: {_failure_text(result)}"
    try:
        return await sandbox.read_file(f"{folder}/patch", max_bytes=settings.max_patch), ""
    except (OSError, ValueError) as error:
        return b"", f"the patch cannot be read: {error}"


async def judge(sandbox: Sandbox, instance: Instance, patch: bytes, settings: Settings) -> Verdict:
    """Apply a patch in a fresh container, run the tests there, and return their verdict.

    Raises:
        EnvironmentFailure: If the image does not match the row.
        SandboxError: If the sandbox is lost for a reason that the patch did not cause.
    """
    await _break(sandbox, instance, settings)
    if instance.test_patch:  # before the model's: that it cannot be applied is the row's fault
        problem = await _apply(sandbox, instance.test_patch.encode(), settings)
        if problem:
            raise EnvironmentFailure(f"{instance.id}: the test patch cannot be applied: {problem}")
    kept = keep(patch, tests=test_files(instance), allowed=touched(instance.fix or instance.bug))
    try:
        return await _judge(sandbox, instance, kept, settings)
    except OSError as error:  # the container has ended, or is full, through what the patch brought
        return Verdict(problem=f"the tests could not be run: {error}", dropped=kept.dropped)


async def _judge(sandbox: Sandbox, instance: Instance, kept: Kept, settings: Settings) -> Verdict:
    if kept.data and (problem := await _apply_kept(sandbox, kept, settings)):
        return Verdict(problem=f"the patch cannot be applied: {problem}", dropped=kept.dropped)
    command = command_of(instance, settings.command)
    if settings.before_tests:
        await _exec(sandbox, f"{ACTIVATE}\n{settings.before_tests}", settings, settings.timeout)
    if reading_of(command) == "report":
        results, printed = await _reported(sandbox, command, settings)
    else:
        result = await _exec(sandbox, f"{ACTIVATE}\n{command}", settings, settings.timeout)
        printed = f"{result.stdout}\n{result.stderr}"
        results = parse_output(printed)
        results.finished = not (result.timed_out or result.ended)
    return _verdict(instance, results, kept, printed)


def _verdict(instance: Instance, results: Results, kept: Kept, printed: str) -> Verdict:
    failed = [
        name
        for name in [*instance.must_pass, *instance.keep_passing]
        if results.doubt or not results.good(name)
    ]
    missing = set(failed)
    return Verdict(
        must_pass=_share(instance.must_pass, missing),
        keep_passing=_share(instance.keep_passing, missing),
        problem=results.doubt,
        dropped=kept.dropped,
        failed=failed,
        output=writable(printed[-_KEPT_OUTPUT:]),
    )


def _share(names: tuple[str, ...], failed: set[str]) -> float:
    return sum(name not in failed for name in names) / len(names) if names else 1.0


async def _reported(sandbox: Sandbox, command: str, settings: Settings) -> tuple[Results, str]:
    """Run tests that report over a connection which leads here."""
    secret, name = secrets.token_hex(16), f"vf_report_{secrets.token_hex(8)}"
    receiver = Receiver(secret)
    source = (resources.files("vf.bridges.swe") / "reporter.py").read_bytes()
    async with _listening(receiver) as address:
        port = await sandbox.forward(address)
        folder = f"/tmp/{name}"
        await sandbox.write_file(f"{folder}/{name}.py", source)
        await sandbox.write_file(f"{folder}/sitecustomize.py", source)
        await sandbox.write_file(f"{folder}/key", f"{port} {secret}")
        script = f"""{ACTIVATE}
export VF_OLD_PYTHONPATH="${{PYTHONPATH:-}}" VF_OLD_PYTEST_ADDOPTS="${{PYTEST_ADDOPTS:-}}"
export PYTHONPATH="{folder}${{PYTHONPATH:+:$PYTHONPATH}}"
export PYTEST_ADDOPTS="-p {name} ${{PYTEST_ADDOPTS:-}}"
{command}
"""
        result = await _exec(sandbox, script, settings, settings.timeout)
        await receiver.ended(_LAST_WORDS)
    return receiver.results, f"{result.stdout}\n{result.stderr}"


@asynccontextmanager
async def _listening(receiver: Receiver) -> AsyncIterator[tuple[str, int]]:
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, limit=2**20)
    try:
        host, port = server.sockets[0].getsockname()[:2]
        yield host, port
    finally:
        server.close()


async def _break(sandbox: Sandbox, instance: Instance, settings: Settings) -> None:
    """Apply the bug to a repository without it."""
    if instance.bug and (problem := await _apply(sandbox, instance.bug.encode(), settings)):
        raise EnvironmentFailure(f"{instance.id}: the bug cannot be applied: {problem}")


async def _apply_kept(sandbox: Sandbox, kept: Kept, settings: Settings) -> str:
    """Apply what is left of a model's patch, if git sees the same files in it."""
    path = await _written(sandbox, kept.data)
    command = ["/bin/sh", "-c", f"{_GIT} apply --numstat -z {path}"]
    listed = await sandbox.exec(
        command, cwd=settings.workdir, timeout=_STEP_TIMEOUT, max_output=2**20
    )
    if not listed.ok:
        return _failure_text(listed)
    seen = [line.split("\t", 2)[-1] for line in listed.stdout.split("\0") if line]
    if sorted(seen) != sorted(kept.files):
        return "git reads other files in it than its headers name"
    result = await _exec(sandbox, f"{_GIT} {_APPLY} {path}", settings)
    return "" if result.ok else _failure_text(result)


async def _apply(sandbox: Sandbox, patch: bytes, settings: Settings) -> str:
    path = await _written(sandbox, patch)
    result = await _exec(sandbox, f"{_GIT} {_APPLY} {path}", settings)
    return "" if result.ok else _failure_text(result)


async def _written(sandbox: Sandbox, data: bytes) -> str:
    path = f"/tmp/vf-{secrets.token_hex(8)}.patch"
    await sandbox.write_file(path, data)
    return path


async def _run_step(
    sandbox: Sandbox, script: str | list[str], settings: Settings, problem: str
) -> ExecResult:
    """Run a step in a container that no model has seen.

    Raises:
        EnvironmentFailure: If it fails.
    """
    command = ["/bin/sh", "-c", script] if isinstance(script, str) else script
    result = await sandbox.exec(
        command, cwd=settings.workdir, timeout=_STEP_TIMEOUT, max_output=2**20
    )
    if not result.ok:
        raise EnvironmentFailure(
            f"the image is not made for this: {problem}, in {settings.workdir}: "
            f"{_failure_text(result)}"
        )
    return result


async def _exec(
    sandbox: Sandbox, script: str, settings: Settings, timeout: float = _STEP_TIMEOUT
) -> ExecResult:
    # bash where there is one: environments of conda are made for it.
    start = 'if command -v bash >/dev/null; then exec bash -c "$0"; else exec sh -c "$0"; fi'
    return await sandbox.exec(
        ["/bin/sh", "-c", start, script],
        cwd=settings.workdir,
        timeout=timeout,
        max_output=_MOST_OUTPUT,
    )


def _failure_text(result: ExecResult) -> str:
    output = (result.stderr.strip() or result.stdout.strip())[-500:]
    if result.timed_out:
        return f"it took longer than {result.duration:.0f} s"
    return output or f"exit code {result.returncode}"


def recorded(verdict: Verdict, patch: bytes) -> dict[str, Any]:
    """Return a trace's record of a verdict."""
    return {
        "resolved": float(verdict.resolved),
        "must_pass": verdict.must_pass,
        "keep_passing": verdict.keep_passing,
        "problem": verdict.problem,
        "dropped": dict(verdict.dropped),
        "failed": verdict.failed[:_MOST_FAILED],
        "output": verdict.output,
        "patch": writable(patch[:_KEPT_PATCH].decode("utf-8", "replace")),
    }
