"""Gives a user namespace its users: ``python3 map_ids.py PID ID FIRST COUNT``, as root.

The COUNT ids from ID on, of the namespace of the process PID, become those from FIRST on of this
machine. The kernel wants that of who owns the namespace, and has CAP_SETUID and CAP_SETGID outside.
Root need not have CAP_SYS_ADMIN, as in a container of Docker's.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_KEEPCAPS, CAPABILITY_VERSION, CAP_SETGID, CAP_SETUID = 8, 0x20080522, 6, 7


def main(pid: int, inner: int, first: int, count: int) -> None:
    """Become the owner of the namespace, keep the two capabilities, and write both maps."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(first, first, first)
    os.setresuid(first, first, first)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    bits = 1 << CAP_SETGID | 1 << CAP_SETUID
    if libc.capset(header, (ctypes.c_uint32 * 6)(bits, bits)) != 0:
        sys.exit(f"cannot keep CAP_SETUID and CAP_SETGID: {os.strerror(ctypes.get_errno())}")
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{pid}/{name}", "w") as file:
            file.write(f"{inner} {first} {count}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
