"""The sandboxes of this process are forks of a zygote, one for each working directory.

The zygote is started when the first sandbox is, and ends with this process: the thread that started
it lives until then, and the kernel kills bubblewrap when that thread ends. A process that this one
forks starts its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import json
import os
import random
import socket
import subprocess
import sys
import threading
import weakref
from concurrent.futures import Future
from importlib import resources
from pathlib import PurePath
from typing import Any, NamedTuple

from vf.runtime.errors import SandboxError
from vf.sandbox.boot import MODULES, boot, source_of
from vf.sandbox.bubblewrap.system import FILES, ID, System, namespaces
from vf.sandbox.bubblewrap.zygote import READY, START
from vf.sandbox.child import START_TIMEOUT
from vf.sandbox.uids import WIDE

ZYGOTE = (
    *MODULES,
    ("vf.sandbox.bubblewrap", None),
    ("vf.sandbox.bubblewrap.enter", "bubblewrap/enter.py"),
    ("vf.sandbox.bubblewrap.zygote", "bubblewrap/zygote.py"),
)
# In its user namespace, which owns nothing of this machine's.
CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_SETUID", "CAP_SETGID", "CAP_KILL")
UIDS = 4096  # of a zygote: its own, and one for each sandbox, by turns
SEND_TIMEOUT = 10.0  # seconds until a zygote must have taken a request
MESSAGES_SIZE = 4096  # bytes


class End(NamedTuple):
    """How a sandbox ended.

    Attributes:
        code: A shell's exit code of PID 1; None if the zygote has ended, or could not fork.
        text: What it said on stderr, or why there was no sandbox.
    """

    code: int | None
    text: str


LOST = End(None, "the process that started it has ended, or can open no more files")


class Messages:
    """A file in memory for the beginning of what a process says on stderr."""

    def __init__(self) -> None:
        file = os.memfd_create("messages", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._file = open(file, "r+b", buffering=0)  # noqa: SIM115
        os.ftruncate(file, MESSAGES_SIZE)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)

    def fileno(self) -> int:
        """Return the file's descriptor."""
        return self._file.fileno()

    def close(self) -> str:
        """Return the text; it cannot be read again."""
        if self._file.closed:
            return ""
        data = os.pread(self.fileno(), MESSAGES_SIZE, 0).rstrip(b"\0")
        self._file.close()
        return data.decode("utf-8", "replace").strip()


class Fork:
    """The first process of a sandbox. Belongs to the running event loop.

    Attributes:
        connection: The other end of its stdin and stdout.
        uid: Its uid in the zygote's user namespace; ``ID`` is the zygote's own.
    """

    uid = ID

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[End] = loop.create_future()
        with contextlib.ExitStack() as opened:
            self._messages = Messages()
            opened.callback(self._messages.close)
            self.connection, self._its_connection = map(opened.enter_context, socket.socketpair())
            self._status, self._its_status = socket.socketpair(
                socket.AF_UNIX, socket.SOCK_SEQPACKET
            )
            opened.pop_all()
        self._status.setblocking(False)
        loop.add_reader(self._status, self._read)

    @property
    def ended(self) -> bool:
        """Whether its end has been reported."""
        return self._ended.done()

    @property
    def lost(self) -> bool:
        """Whether its zygote ended, or took it to be no request, without a word."""
        return self.ended and self._ended.result() == LOST

    def descriptors(self) -> list[int]:
        """Return the descriptors that the zygote needs."""
        return [file.fileno() for file in (self._its_connection, self._messages, self._its_status)]

    def begun(self) -> None:
        """Close what only the zygote needs."""
        self._its_connection.close()
        self._its_status.close()

    def discard(self) -> None:
        """Close everything; if it has been started meanwhile, it ends."""
        self.begun()
        self._messages.close()
        asyncio.get_running_loop().remove_reader(self._status)
        self._status.close()
        self.connection.close()

    def kill(self) -> None:
        """Kill everything in the sandbox, if it has not ended."""
        with contextlib.suppress(OSError):
            self._status.send(b"K")

    async def wait(self) -> End:
        """Wait for its end."""
        return await asyncio.shield(self._ended)

    def _read(self) -> None:
        try:
            data = self._status.recv(MESSAGES_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        asyncio.get_running_loop().remove_reader(self._status)
        self._status.close()
        text = self._messages.close()
        if data[:1].isdigit():
            code = os.waitstatus_to_exitcode(int(data))
            self._ended.set_result(End(code if code >= 0 else 128 - code, text))
        else:
            text = data.removeprefix(b"E ").decode() or text
            self._ended.set_result(End(None, text) if text else LOST)


class Zygote:
    """A running zygote.

    Args:
        system: The programs and files with which it is started.
        workdir: The working directory of its sandboxes.

    Raises:
        SandboxError: If it does not start.
    """

    def __init__(self, system: System, workdir: str) -> None:
        others = range(ID + 1, ID + UIDS) if os.geteuid() == 0 else [ID]
        self._uids = itertools.cycle(others)
        self._forks: weakref.WeakSet[Fork] = weakref.WeakSet()  # one that is forgotten ends
        self._spared = False  # one that was just started is used presently
        self._socket, its_socket = socket.socketpair()
        messages = Messages()
        try:
            self._start(system, workdir, its_socket, messages.fileno())
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._socket.close()
            text = messages.close()
            raise SandboxError(f"bubblewrap did not start: {text or error}") from error
        else:
            messages.close()
        finally:
            its_socket.close()

    def fork(self, fork: Fork) -> bool:
        """Start a sandbox; return False if the zygote has ended."""
        try:
            socket.send_fds(self._socket, [START], fork.descriptors())
        except ConnectionError:
            return False
        fork.uid = next(self._uids)
        fork.begun()
        self._forks.add(fork)
        self._spared = True
        return True

    def idle(self) -> bool:
        """Return whether it has no sandbox; False at first if it has had none yet."""
        spared, self._spared = self._spared, True
        return spared and all(fork.ended for fork in self._forks)

    def end(self) -> None:
        """End it, with every sandbox of it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # a process that was forked has it, too
        self._socket.close()

    def _start(self, system: System, workdir: str, its_socket: socket.socket, stderr: int) -> None:
        first = _first_uid() if os.geteuid() == 0 else None
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as its_own:
            info, its_info = os.pipe()
            its_block, block = os.pipe()
            info_file = ours.enter_context(open(info, "rb"))
            block_file = ours.enter_context(open(block, "wb"))
            passed = {"--info-fd": its_info, "--userns-block-fd": its_block}
            files = {path: os.memfd_create("etc") for path in FILES}
            for descriptor in (*passed.values(), *files.values()):
                its_own.callback(os.close, descriptor)
            command = [system.bwrap, *namespaces(), *_mounts(system, workdir, files)]
            for name in CAPABILITIES:
                command += ["--cap-add", name]
            for name, descriptor in passed.items():
                command += [name, str(descriptor)]
            command += ["--", system.python, "-I", "-S", "-c", source_of("supervisor.py")]
            process = _child_of_a_lasting_thread(
                command,
                stdin=its_socket,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                pass_fds=[*passed.values(), *files.values()],
                cwd="/",
                env={},
                start_new_session=True,  # Ctrl-C is for this process, which then ends it
                user=first,
                group=first,
                extra_groups=None if first is None else [],
            )
            its_own.close()
            its_socket.close()  # or its end could not be seen
            try:
                _map_ids(json.load(info_file)["child-pid"], first)
                block_file.write(b"x")
                block_file.close()
                self._socket.settimeout(START_TIMEOUT)
                self._socket.sendall(boot(ZYGOTE))
                if self._socket.recv(1) != READY:
                    raise OSError("it has ended")
                self._socket.settimeout(SEND_TIMEOUT)
            except BaseException:
                process.kill()
                raise


def _first_uid() -> int:
    """Return the first of ``UIDS`` uids that no other process of this machine is likely to have.

    No user of the machine has them: the kernel counts pipes, descriptors under way and more by uid,
    and none of them owns files.
    """
    return WIDE.start + UIDS * random.SystemRandom().randrange(len(WIDE) // UIDS)


def _map_ids(pid: int, first: int | None) -> None:
    """Give the user namespace of a process its users: many if this is root, else this user."""
    if first is None:
        for name, text in {
            "setgroups": "deny",
            "uid_map": f"{ID} {os.geteuid()} 1",
            "gid_map": f"{ID} {os.getegid()} 1",
        }.items():
            with open(f"/proc/{pid}/{name}", "w") as file:
                file.write(text)
        return
    script = (resources.files("vf.sandbox") / "bubblewrap/map_ids.py").read_text("utf-8")
    command = [sys.executable, "-I", "-S", "-c", script, *map(str, (pid, ID, first, UIDS))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"its users cannot be set: {done.stderr.strip()[-500:]}")


def _mounts(system: System, workdir: str, files: dict[str, int]) -> list[str]:
    """Return bubblewrap's arguments for what a zygote sees; fill the small files of /etc."""
    # Bubblewrap would make those that are missing for its own user only.
    targets = [*system.mounts[2::3], *FILES, "/tmp/file", f"{workdir}/file"]
    folders = {str(folder) for target in targets for folder in PurePath(target).parents}
    arguments = [
        word for folder in sorted(folders - {"/"}) for word in ("--perms", "0755", "--dir", folder)
    ]
    arguments += system.mounts
    for path, file in files.items():
        os.write(file, FILES[path].encode())
        os.lseek(file, 0, os.SEEK_SET)
        arguments += ["--perms", "0444", "--ro-bind-data", str(file), path]
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    # Reading it gives zeros, too, but it cannot be mapped: mapped zeros are shared without a file.
    arguments += ["--dev-bind", "/dev/full", "/dev/zero"]
    return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]


def _child_of_a_lasting_thread(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process in a thread that waits for it: bubblewrap ends when its parent thread does.

    Raises:
        OSError: If it cannot be started.
    """
    started: Future[subprocess.Popen[bytes]] = Future()

    def run() -> None:
        try:
            process = subprocess.Popen(command, **options)
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(process)
        process.wait()

    threading.Thread(target=run, name="bubblewrap", daemon=True).start()
    return started.result()


class _Zygotes:
    """The zygotes of this process, by what they are made from. Safe to use from any thread."""

    def __init__(self) -> None:
        self._all: dict[tuple[System, str], Zygote] = {}
        self._lock, self._starting = threading.Lock(), threading.Lock()

    def ready(self, system: System, workdir: str) -> bool:
        """Return whether there is a zygote."""
        with self._lock:
            return (system, workdir) in self._all

    def fork(self, system: System, workdir: str, fork: Fork) -> bool:
        """Start a sandbox if there is a zygote for it that has not ended."""
        with self._lock:
            zygote = self._all.get((system, workdir))
            if zygote is None or zygote.fork(fork):
                return zygote is not None
            self._all.pop((system, workdir)).end()
            return False

    def start(self, system: System, workdir: str) -> None:
        """Start a zygote if there is none, in whose place others without sandboxes end.

        Raises:
            SandboxError: If it does not start.
        """
        with self._starting:
            if self.ready(system, workdir):
                return
            zygote = Zygote(system, workdir)
            with self._lock:
                for key in [key for key, other in self._all.items() if other.idle()]:
                    self._all.pop(key).end()
                self._all[system, workdir] = zygote


_zygotes = _Zygotes()


def _forget_zygotes() -> None:
    global _zygotes
    _zygotes = _Zygotes()


os.register_at_fork(after_in_child=_forget_zygotes)


async def fork(system: System, workdir: str) -> Fork:
    """Start a sandbox's first process.

    Args:
        system: The programs and files that it needs.
        workdir: Its working directory.

    Raises:
        OSError: If no further file can be opened.
        SandboxError: If bubblewrap does not start.
    """
    while True:
        if not _zygotes.ready(system, workdir):  # before its sandboxes take open files, too
            await asyncio.to_thread(_zygotes.start, system, workdir)
        fork = Fork()
        try:
            if _zygotes.fork(system, workdir, fork):
                return fork
        except BaseException:
            fork.discard()
            raise
        fork.discard()
