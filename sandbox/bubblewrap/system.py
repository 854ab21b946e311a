"""The parts of this machine that a bubblewrap sandbox sees, and whether one can be made here."""

from __future__ import annotations

import asyncio
import functools
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vf.runtime.errors import ConfigError
from vf.sandbox.uids import next_uids

INSTALL = (
    "on Debian and Ubuntu, apt install bubblewrap; on Fedora, dnf install bubblewrap; without "
    "root, conda install -c conda-forge bubblewrap"
)
FORBIDDEN = (
    "this machine forbids user namespaces to its users. As root: sysctl -w "
    "kernel.unprivileged_userns_clone=1 (Debian), sysctl -w "
    "kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu 24.04 and later), sysctl -w "
    "user.max_user_namespaces=10000 (RHEL). Inside a container of Docker's, namespaces take "
    "--security-opt seccomp=unconfined --security-opt systempaths=unconfined"
)
USR = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Files that programs look for, none of them secret.
ETC = (
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "services",
    "protocols",
    "ssl/certs",
    "ca-certificates",
    "pki/tls/certs",
)
# Docker's masked paths, where they are files.
HIDDEN = (
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/timer_list",
    "/proc/timer_stats",
)
ID = 1000  # the user and group that code runs as inside
USER = "sandbox"
FILES = {
    "/etc/passwd": f"root:x:0:0:root:/:/bin/sh\n{USER}:x:{ID}:{ID}::/workspace:/bin/sh\n",
    "/etc/group": f"root:x:0:\n{USER}:x:{ID}:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
NEEDED = (
    "import ctypes, json, mmap, resource, select, socket, ssl, sqlite3, sys, zlib;"
    "print('%d.%d' % sys.version_info[:2])"
)
OLDEST = (3, 9)
OLDEST_KERNEL = (5, 14)  # counts a user's processes in each user namespace
TRIAL_TIMEOUT = 60.0  # seconds
_finding = threading.Lock()

# What enforces each limit here. Where an engine's control group is better, the text says so.
HELD_BY = {
    "memory": "a look at processes, temporary files and buffers of sockets, 20 times a second; the "
    "largest process is killed. Buffers of pipes are not counted",
    "cpus": "affinity of programs: whole cores, rounded up, which sandboxes take by turns",
    "pids": "the kernel, for each namespace (RLIMIT_NPROC)",
    "workspace": "the kernel (tmpfs)",
    "tmp": "the kernel (tmpfs)",
    "files": "the kernel (tmpfs)",
    "disk": "nothing of the disk can be written",
    "lifetime": "the supervisor, PID 1 of the sandbox",
}


@dataclass(frozen=True, slots=True)
class System:
    """The programs and files of this machine with which sandboxes are made.

    Attributes:
        bwrap: The path of bubblewrap.
        python: The path of the interpreter inside.
        mounts: Arguments of bubblewrap that mount parts of this machine, read-only.
    """

    bwrap: str
    python: str
    mounts: tuple[str, ...]


@functools.cache
def find_system() -> System:
    """Return the programs and files for sandboxes. Tries each interpreter inside, which blocks.

    Raises:
        ConfigError: If none can be made here; says why, and how to change that.
    """
    if not sys.platform.startswith("linux"):
        raise ConfigError(
            f'sandbox = "bubblewrap" needs Linux, and this is {sys.platform}: use Docker, '
            'sandbox = "docker"'
        )
    kernel = re.match(r"(\d+)\.(\d+)", platform.release())
    if kernel and tuple(map(int, kernel.groups())) < OLDEST_KERNEL:
        raise ConfigError(
            f'sandbox = "bubblewrap" needs Linux 5.14 or newer, and this is {platform.release()}: '
            "older ones cannot bound the processes of a namespace"
        )
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise ConfigError(f'sandbox = "bubblewrap" needs the program bwrap: {INSTALL}')
    error = ""
    for python, folders in interpreters():
        system = System(bwrap, python, (*system_folders(), *folders))
        error = trial(system)
        if not error:
            return system
    if "ermission" in error or "not permitted" in error or "namespace" in error:
        raise ConfigError(f"{FORBIDDEN} ({error})")
    raise ConfigError(f"no Python 3.9 or newer with its whole library runs in bubblewrap: {error}")


def interpreters() -> Iterator[tuple[str, list[str]]]:
    """Yield interpreters and the arguments that mount them: this process's own, then others."""
    prefix = Path(sys.base_prefix)
    own = prefix / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    usr = prefix.is_relative_to("/usr")
    yield str(own), [] if usr else ["--ro-bind", str(prefix), str(prefix)]
    for name in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if os.path.exists(name):
            yield name, []


def system_folders() -> list[str]:
    """Return the arguments that mount the system's files, and no user's."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in USR:
        path = f"/{name}"
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            arguments += ["--ro-bind", path, path]
    for name in ETC:
        path = f"/etc/{name}"
        if os.path.exists(path):
            arguments += ["--ro-bind", os.path.realpath(path), path]
    return arguments


def hidden_files() -> list[str]:
    """Return the files of /proc that engines hide."""
    return [path for path in HIDDEN if os.path.exists(path)]


def namespaces() -> list[str]:
    """Return the arguments that isolate a sandbox from this machine."""
    return [
        *("--unshare-all", "--unshare-user", "--uid", str(ID), "--gid", str(ID)),
        *("--hostname", "sandbox", "--die-with-parent", "--new-session", "--as-pid-1"),
        *("--clearenv", "--cap-drop", "ALL"),
    ]


def outer_uid() -> int | None:
    """Return the uid that bubblewrap runs as if this is root; None for this user.

    No user of the machine and no other sandbox has it: the kernel counts processes, pipes and more
    by it, and it owns no files.
    """
    return next_uids()[0] if os.geteuid() == 0 else None


def trial(system: System) -> str:
    """Run the interpreter in a sandbox; return an error message, or nothing."""
    uid = outer_uid()
    command = [system.bwrap, *namespaces(), *system.mounts, "--proc", "/proc", "--dev", "/dev"]
    try:
        done = subprocess.run(
            [*command, system.python, "-I", "-S", "-c", NEEDED],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd="/",
            timeout=TRIAL_TIMEOUT,
            check=False,
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode != 0:
        return f"{system.python}: {done.stderr.strip()[-500:]}"
    version = tuple(int(part) for part in done.stdout.split("."))
    return "" if version >= OLDEST else f"{system.python} is Python {done.stdout.strip()}"


async def checked_system() -> System:
    """Return :func:`find_system`'s result without blocking the event loop.

    Raises:
        ConfigError: If none can be made here; says how to change that.
    """
    return await asyncio.to_thread(_find_once)


def _forget_finding() -> None:
    global _finding
    _finding = threading.Lock()


os.register_at_fork(after_in_child=_forget_finding)  # another thread may have had it


def _find_once() -> System:
    with _finding:  # many sandboxes may be the first ones
        return find_system()
