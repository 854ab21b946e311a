"""The script that is PID 1 of a bubblewrap sandbox: ``enter.py PLAN SUPERVISOR [flags]``.

It mounts the writable folders and the terminals, opens the kernel's diagnosis of sockets, drops the
capabilities that this took, applies the filter of system calls, and becomes the supervisor.
Bubblewrap itself cannot limit the number of files in a folder, or of terminals. The script is
passed as an argument, so that nothing inside can replace it, and runs in Python 3.9.

``PLAN`` is JSON: ``folders`` are paths with mount options of tmpfs, ``cores`` are the processor's,
``filter`` is base64.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import socket
import sys

CLONE_NEWNS = 0x20000
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
PR_CAPBSET_DROP, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 24, 22, 2
AF_NETLINK, NETLINK_SOCK_DIAG = 16, 4
CAP_SETPCAP, CAP_SYS_ADMIN = 8, 21
CAPABILITY_VERSION = 0x20080522
# The machine has some thousand pseudo-terminals; bubblewrap's own mount gives all to whoever asks.
TERMINALS = b"newinstance,ptmxmode=0666,mode=0620,max=64"
OOM_SCORE = "500"  # if the machine itself runs out, sandboxes go before the trainer
_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):  # struct sock_fprog
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def require(code: int, problem: str) -> None:
    """Exit with a message if a call of the C library failed."""
    if code != 0:
        sys.exit(f"supervisor: {problem}: {os.strerror(ctypes.get_errno())}")


def main() -> None:
    """Mount the folders, and drop all capabilities."""
    plan = json.loads(sys.argv.pop(1))
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(OOM_SCORE)
    os.sched_setaffinity(0, plan["cores"])
    # In a user namespace below the one that owns the mounts: only in a copy may it mount.
    require(_libc.unshare(CLONE_NEWNS), "cannot have mounts of its own")
    for path, options in plan["folders"].items():
        made = _libc.mount(
            b"tmpfs", path.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, options.encode()
        )
        require(made, f"cannot mount {path}")
    made = _libc.mount(b"devpts", b"/dev/pts", b"devpts", MS_NOSUID | MS_NOEXEC, TERMINALS)
    require(made, "cannot mount /dev/pts")
    for capability in (CAP_SYS_ADMIN, CAP_SETPCAP):
        dropped = _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        require(dropped, f"cannot drop capability {capability}")
    sockets = socket.socket(AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)
    sys.argv += ["--sockets", str(sockets.detach())]
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    require(_libc.capset(header, (ctypes.c_uint32 * 6)()), "cannot give up its capabilities")
    code = base64.b64decode(plan["filter"])
    program = _Program(len(code) // 8, code)
    filtered = _libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)
    require(filtered, "cannot take on the filter of system calls")


if __name__ == "__main__":
    main()
    exec(compile(sys.argv.pop(1), "supervisor", "exec"))
