"""What runs on a cluster's machines: the actor around one process, and a machine's report.

Importing this module loads no Ray: an actor's class and a task's function are plain Python.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import select
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from vf.cluster.fleet import Command
from vf.cluster.process import Process
from vf.runtime.ports import free_port

READ_SECONDS = 10.0  # for which output is waited for in one call
READ_BYTES = 2**18

# Holds the names of variables that this process alone was given, for the machine that it is on.
HERE_ONLY = "VF_HERE_ONLY"
DEVICES = "CUDA_VISIBLE_DEVICES"
THREADS = "OMP_NUM_THREADS"  # which Ray sets to an actor's cores where it is not set
JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # is set in a job that was submitted

# Ray kills the direct children of an actor that it ends, and nothing below them. So the guard,
# which ends all that a process started, is not a direct child.
THROUGH = ["sh", "-c", '"$@" & wait $!', "sh"]


class Output(NamedTuple):
    """What a process has written since the last call; ``code`` once it has ended."""

    text: bytes
    code: int | None


class Post:
    """Runs one process on the machine where Ray put this actor, and ends it with itself.

    Args:
        host: Address of the machine, if it is known.
    """

    def __init__(self, host: str | None = None) -> None:
        self._host = host or own_address()
        self._process: Process | None = None
        self._reading = -1

    def begin(self, command: Command, environ: Mapping[str, str], folder: str) -> tuple[str, int]:
        """Start the process and return its machine's address, and the port that was found for it.

        Args:
            command: Program and arguments.
            environ: Variables of the process that asks; see :func:`elsewhere`. Those that this
                machine has by itself keep their values here, except for ``OMP_NUM_THREADS``.
            folder: Working directory, if there is such a folder here.

        Raises:
            ConfigError: If there is no such program here.
        """
        port = free_port(self._host)
        command = command.at(self._host, port)
        own = outside_ray(os.environ)
        if THREADS in environ:
            own.pop(THREADS, None)
        elif THREADS in own:
            own[HERE_ONLY] = THREADS
        variables = {**environ, **own, **command.env}
        self._reading, output = os.pipe()
        directory = folder if os.path.isdir(folder) else None
        try:
            self._process = Process(command, variables, output, directory, THROUGH)
        finally:
            os.close(output)
        return self._host, port

    def read(self) -> Output:
        """Wait a while for output, and return it. The pipe ends with the last of its writers."""
        assert self._process is not None
        if self._reading < 0 or not select.select([self._reading], [], [], READ_SECONDS)[0]:
            return Output(b"", self._process.poll())
        text = os.read(self._reading, READ_BYTES)
        if text:
            return Output(text, None)
        os.close(self._reading)
        self._reading = -1
        return Output(b"", self._process.wait())

    def stop(self, patience: float) -> None:
        """End the process and all that it started: SIGTERM, and SIGKILL after so many seconds."""
        if self._process is not None:
            self._process.stop(patience)


def outside_ray(environ: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables without those that Ray sets for its own processes."""
    return {name: value for name, value in environ.items() if not name.startswith("RAY_")}


def elsewhere(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that are for processes on other machines, too."""
    own = {HERE_ONLY, DEVICES, *environ.get(HERE_ONLY, "").split()}
    if JOB in environ:  # to which Ray gives one thread, as to all that reserves no core
        own.add(THREADS)
    return {name: value for name, value in outside_ray(environ).items() if name not in own}


def own_address() -> str:
    """Return the address by which Ray's other machines reach this one."""
    import ray

    return str(ray.util.get_node_ip_address())


@dataclass(frozen=True)
class Report:
    """What a machine has for a run.

    Attributes:
        host: Its address.
        versions: Of Python and of the packages that its processes exchange objects with.
        code: A hash of vf-rl's files.
        missing: Those of the folders asked about that it cannot see.
        clock: Its time, in seconds since 1970.
    """

    host: str
    versions: Mapping[str, str]
    code: str
    missing: list[str] = field(default_factory=list)
    clock: float = 0.0


def report(marks: Mapping[str, str], host: str | None = None) -> Report:
    """Describe this machine.

    Args:
        marks: Files by the folder that they show: a folder is the same if it has its file.
        host: Its address, if it is known.
    """
    versions = {"Python": platform.python_version()}
    for package in ("ray", "torch", "transformers"):
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package).partition("+")[0]  # for CUDA or not
    missing = [folder for folder, file in marks.items() if not os.path.exists(file)]
    return Report(host or own_address(), versions, code_hash(), missing, time.time())


def code_hash() -> str:
    """Return a hash of vf-rl's Python files, as they are imported here."""
    spec = importlib.util.find_spec("vf")
    assert spec is not None
    assert spec.origin is not None
    root, digest = Path(spec.origin).parent, hashlib.sha256()
    for folder, folders, files in os.walk(root, followlinks=True):
        folders.sort()
        for name in sorted(files):
            if name.endswith(".py"):
                path = Path(folder, name)
                digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
