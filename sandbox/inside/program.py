"""The process that waits for its order, and becomes a program."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
import resource
import select
import socket
import stat
from typing import Dict, List, NamedTuple, NoReturn, Sequence, Tuple, Union  # noqa: UP035  (Python 3.9 runs this)

from vf.sandbox.folder import write_all
from vf.sandbox.inside import kernel

MOST_DESCRIPTORS = 16  # that come with an order
NICE = 10  # what a program runs with: what may have to kill it must get to run
LINE = 9  # the descriptor of a long line, which every shell knows
LONGEST_ARGUMENT = 2**17  # the kernel refuses a longer one (MAX_ARG_STRLEN)


Order = Tuple[Union[List[str], str], Dict[str, str], str]  # noqa: UP006, UP007


class Stage(NamedTuple):
    """The surroundings of a program: its user and its limits.

    ``walls`` is a Landlock ruleset, ``filter`` one of system calls for kernel.restrict_calls,
    ``cores`` are the processor's, empty for all.
    """

    who: kernel.Identity
    rlimits: list[tuple[int, int]]
    walls: int
    filter: bytes = b""
    cores: Sequence[int] = ()


def start(
    channel: socket.socket, orders: socket.socket, stage: Stage, noted: mmap.mmap
) -> NoReturn:
    """Wait for the order and become the program, in the child of a fork.

    Args:
        channel: The socket to the supervisor.
        orders: The socket from which the order comes.
        stage: The surroundings of the program.
        noted: A byte of shared memory, set before the order is taken.
    """
    code, name = 126, ""
    try:
        prepare(stage)
        rehearse(stage)
        kernel.restrict_calls(stage.filter)
        poll = select.poll()
        poll.register(orders.fileno(), select.POLLIN)
        poll.poll()
        noted[0] = 1
        order = receive(orders)
        if order is None:
            os._exit(0)  # there is to be no program
        argv, env, cwd = order
        stage.who.become()
        kernel.die_with_parent()
        name = cwd
        enter(cwd)
        name = argv[0] if argv else ""
        code = execute(argv, env) if name else 127
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    except BaseException as exc:
        # What no program can be given, such as a NUL character, is a ValueError of Python's.
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        name = getattr(exc, "filename", None) or name
        with contextlib.suppress(OSError):
            if noted[0]:
                channel.send(f"E {str(name)[:1000]}: {reason}".encode("utf-8", "replace"))
    finally:
        os._exit(code)


def enter(folder: str) -> None:
    """Change to a folder; if its owner, this user, has removed the permission to, restore it.

    Otherwise no program could start there any more, not even ``chmod``.
    """
    try:
        os.chdir(folder)
    except PermissionError:
        os.chmod(folder, stat.S_IMODE(os.stat(folder).st_mode) | stat.S_IRWXU)
        os.chdir(folder)


def prepare(stage: Stage) -> None:
    """Apply the limits."""
    os.setsid()
    with kernel.files_owned():
        kernel.die_first()
    kernel.stay_within(stage.walls)
    lower_limits(stage.rlimits)
    if stage.cores:
        os.sched_setaffinity(0, stage.cores)
    os.nice(NICE)
    os.umask(0o022)


def send(orders: socket.socket, order: Order, fds: dict[int, int]) -> None:
    """Send an order; ``fds`` maps descriptors of the program to ones of this process.

    Raises:
        OSError: If no further descriptor can be opened, or no process waits for it.
    """
    argv, env, cwd = order
    line = long_line(argv) if isinstance(argv, str) else None
    if line is not None:
        argv, fds = ["/bin/sh", f"/proc/self/fd/{LINE}"], {**fds, LINE: line}
    elif isinstance(argv, str):
        argv = ["/bin/sh", "-c", argv]
    plan = -1
    try:
        plan = os.memfd_create("plan")
        write_all(plan, json.dumps([(argv, env, cwd), list(fds)]).encode())
        socket.send_fds(orders, [b"P"], [plan, *fds.values()])
    finally:
        for file in (plan, line):
            if file is not None and file >= 0:
                os.close(file)


def receive(orders: socket.socket) -> Tuple[List[str], Dict[str, str], str] | None:  # noqa: UP006
    """Receive an order, and have its descriptors; None where the other end is closed.

    Raises:
        OSError: If no further descriptor can be opened.
    """
    fds = socket.recv_fds(orders, 1, MOST_DESCRIPTORS)[1]
    if not fds:
        return None
    plan, *given = fds
    text = os.pread(plan, os.fstat(plan).st_size, 0)
    os.close(plan)
    (argv, env, cwd), targets = json.loads(text)
    take_on(targets, given)
    return argv, env, cwd


def rehearse(stage: Stage) -> None:
    """Do once what an order will require, as far as limits allow.

    A forked process gets a page of memory of its own when it first writes to it, and Python writes
    to what it reads: without this that would be most of the time between an order and its program.
    """
    with contextlib.suppress(OSError):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            send(ours, (["/"], {"PATH": "/"}, "/"), {0: 0, 1: 1, 2: 2})
            argv, env, cwd = receive(theirs) or ([], {}, "/")
        stage.who.rehearse()
        kernel.die_with_parent()
        enter(cwd)
        execute(list(argv), env)  # no program is a folder


def take_on(targets: list[int], given: list[int]) -> None:
    """Move the given descriptors to the numbers that the program uses."""
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in given]
    for fd in given:
        os.close(fd)
    for target, fd in zip(targets, moved):  # noqa: B905  (Python 3.9 runs this)
        os.dup2(fd, target, inheritable=True)


def lower_limits(rlimits: list[tuple[int, int]]) -> None:
    """Lower resource limits, as far as we may."""
    for kind, value in rlimits:
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def long_line(line: str) -> int | None:
    """Return a file with a line that is too long for an argument, or no valid one: then None."""
    if len(line) <= LONGEST_ARGUMENT // 4 or "\0" in line:
        return None
    try:
        text = os.fsencode(line)
    except UnicodeEncodeError:
        return None  # execve says so
    file = os.memfd_create("line", os.MFD_ALLOW_SEALING)
    write_all(file, text)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    return file


def execute(argv: list[str], env: dict[str, str]) -> int:
    """Run the first such program on the path; return 127 where there is none.

    Raises:
        OSError: If there is one that cannot be run.
    """
    denied: OSError | None = None
    name = argv[0]
    folders = env.get("PATH", "/usr/bin:/bin").split(":") if "/" not in name else [""]
    for folder in folders:
        try:
            os.execve(os.path.join(folder, name) if folder else name, argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as exc:
            denied = exc
    if denied is not None:
        raise denied
    return 127
