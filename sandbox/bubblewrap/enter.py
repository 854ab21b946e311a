"""Makes a sandbox around a process that was just forked, which is PID 1 of a new PID namespace.

It has the namespaces of the zygote yet, and its capabilities there. It mounts its own ``/proc``,
becomes a user that no other sandbox has, moves to a user namespace below and to the others that
belong to that, mounts the writable folders and the terminals, opens the kernel's diagnosis of
sockets, drops all capabilities and takes on the filter of system calls. What it has mounted before
the user namespace, nobody in there could take off. It runs in Python 3.9.
"""

from __future__ import annotations

import base64
import ctypes
import fcntl
import os
import socket
import struct
from typing import Any

MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_MOVE, MNT_DETACH = 2, 4, 8, 4096, 8192, 2
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
APART = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
PR_SET_DUMPABLE, PR_CAPBSET_READ, PR_CAPBSET_DROP = 4, 23, 24
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
AF_NETLINK, NETLINK_SOCK_DIAG = 16, 4
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
CAPABILITY_VERSION, MOST_CAPABILITIES = 0x20080522, 64
# The machine has some thousand pseudo-terminals; without a limit, one sandbox could take them all.
TERMINALS = b"newinstance,ptmxmode=0666,mode=0620,max=64"
# The kernel counts these for the zygote's user as well, who has 128 instances by default.
INOTIFY = {"instances": "16", "watches": "8192"}
OOM_SCORE = "500"  # if the machine itself runs out, sandboxes go before the trainer
_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):  # struct sock_fprog
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def require(code: int, problem: str) -> None:
    """Raise OSError if a call of the C library failed."""
    if code != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{problem}: {os.strerror(number)}")


def leave_pid_namespace() -> None:
    """Let the next fork be PID 1 of a new PID namespace."""
    require(_libc.unshare(CLONE_NEWPID), "cannot make a PID namespace")


def return_to(space: int) -> None:
    """Let later forks be in the PID namespace again that this descriptor is of."""
    require(_libc.setns(space, CLONE_NEWPID), "cannot return to its PID namespace")


def enter(plan: dict[str, Any]) -> int:
    """Make the sandbox.

    Args:
        plan: ``uid`` and gid, as the zygote's user namespace has them; ``user``, the user and
            group of everything inside; ``hidden`` files of ``/proc``; ``folders``, paths with mount
            options of tmpfs; ``filter`` in base64.

    Returns:
        A connection to the kernel's diagnosis of the sandbox's sockets.

    Raises:
        OSError: If the kernel does not allow something.
    """
    _write("/proc/self/oom_score_adj", OOM_SCORE)
    _mount_proc(plan["hidden"])
    uid = plan["uid"]
    if uid != os.getuid():  # else this user's only one: it may not even give up groups
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        _libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # or the files below would be root's
    require(_libc.unshare(APART), "cannot make namespaces")
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{plan['user']} {uid} 1")
    _write("/proc/self/gid_map", f"{plan['user']} {uid} 1")
    for name, most in INOTIFY.items():
        _write(f"/proc/sys/user/max_inotify_{name}", most)
    _start_loopback()
    for path, options in plan["folders"].items():
        _mount("tmpfs", path, MS_NOSUID | MS_NODEV, options.encode())
    _mount("devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, TERMINALS)
    sockets = socket.socket(AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)
    _drop_capabilities()
    code = base64.b64decode(plan["filter"])
    program = _Program(len(code) // 8, code)
    filtered = _libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)
    require(filtered, "cannot take on the filter of system calls")
    return sockets.detach()


def _mount_proc(hidden: list[str]) -> None:
    """Replace the zygote's /proc by a new one, and hide files of it."""
    require(_libc.unshare(CLONE_NEWNS), "cannot have mounts of its own")
    # The kernel allows it only while another one can be seen.
    _mount("proc", "/tmp", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    require(_libc.umount2(b"/proc", MNT_DETACH), "cannot take off /proc")
    require(_libc.mount(b"/tmp", b"/proc", None, MS_MOVE, None), "cannot move /proc")
    for path in hidden:
        bound = _libc.mount(b"/dev/null", path.encode(), None, MS_BIND, None)
        require(bound, f"cannot hide {path}")


def _mount(kind: str, path: str, flags: int, options: bytes | None = None) -> None:
    name = kind.encode()
    require(_libc.mount(name, path.encode(), name, flags, options), f"cannot mount {path}")


def _start_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", IFF_UP)  # struct ifreq
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, request)


def _drop_capabilities() -> None:
    for capability in range(MOST_CAPABILITIES):
        if _libc.prctl(PR_CAPBSET_READ, capability, 0, 0, 0) == 1:
            dropped = _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
            require(dropped, f"cannot drop capability {capability}")
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    require(_libc.capset(header, (ctypes.c_uint32 * 6)()), "cannot give up its capabilities")


def _write(path: str, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)
