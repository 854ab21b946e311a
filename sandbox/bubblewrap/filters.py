"""Compiled filters of system calls.

The list is that of containers (:mod:`vf.sandbox.seccomp`). An engine compiles it there; here
libseccomp does, the library that the engines use themselves, by its public C interface:
https://man7.org/linux/man-pages/man3/seccomp_rule_add.3.html.
"""

from __future__ import annotations

import ctypes
import json
import os
from functools import cache
from typing import Any

from vf.runtime.errors import ConfigError
from vf.sandbox.seccomp import EPERM, seccomp_profile

LIBRARY = "libseccomp.so.2"
ALLOW, ERRNO = 0x7FFF0000, 0x00050000  # SCMP_ACT_*
COMPARISONS = {"SCMP_CMP_NE": 1, "SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": 7}
# Calls that hold memory that no process has mapped: no sum over processes would count it. Shared
# memory without a file stays when it leaves every process (MADV_DONTNEED); a pipe holds the huge
# page that a small part of it came from. And the call that would add cores.
UNCOUNTED = (
    "memfd_create",
    "shmget",
    "msgget",
    "semget",
    "mq_open",
    "vmsplice",
    "sched_setaffinity",
)
# Calls about limits and priorities, with the arguments that must be 0: those that name another
# process. A supervisor that only runs when the processor is idle never ends what keeps it busy.
OF_ITSELF = {
    "prlimit64": (0,),
    "setpriority": (0, 1),
    "sched_setscheduler": (0,),
    "sched_setparam": (0,),
    "sched_setattr": (0,),
}
SHARED_WITHOUT_FILE = 0x21  # MAP_SHARED and MAP_ANONYMOUS
SOL_SOCKET, SO_SNDBUF, SO_RCVBUF = 1, 7, 8
F_SETLEASE, F_NOTIFY = 1024, 1026


class _Comparison(ctypes.Structure):  # struct scmp_arg_cmp
    _fields_ = [
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    ]


@cache
def supervisor_filter() -> bytes:
    """Return the filter of everything in a sandbox, the supervisor included.

    Returns:
        Instructions of BPF, each ``struct sock_filter``: 8 bytes.

    Raises:
        ConfigError: If this machine lacks libseccomp.
    """
    return _compiled(json.loads(seccomp_profile()))


@cache
def program_filter() -> bytes:
    """Return the filter of programs on top of :func:`supervisor_filter`, in the same form.

    Raises:
        ConfigError: If this machine lacks libseccomp.
    """
    flags = {"index": 3, "op": "SCMP_CMP_MASKED_EQ", "value": SHARED_WITHOUT_FILE}
    shared = {**flags, "valueTwo": SHARED_WITHOUT_FILE}
    rules: list[dict[str, Any]] = [
        {"names": UNCOUNTED, "action": "SCMP_ACT_ERRNO"},
        {"names": ["mmap"], "action": "SCMP_ACT_ERRNO", "args": [shared]},
    ]
    for name, indices in OF_ITSELF.items():
        for index in indices:
            other = {"index": index, "op": "SCMP_CMP_NE", "value": 0}
            rules.append({"names": [name], "action": "SCMP_ACT_ERRNO", "args": [other]})
    # A lease lets whoever owns a file keep others from opening it for a minute.
    for operation in (F_SETLEASE, F_NOTIFY):
        equal = {"index": 1, "op": "SCMP_CMP_EQ", "value": operation}
        rules.append({"names": ["fcntl", "fcntl64"], "action": "SCMP_ACT_ERRNO", "args": [equal]})
    for option in (SO_SNDBUF, SO_RCVBUF):
        arguments = [
            {"index": 1, "op": "SCMP_CMP_EQ", "value": SOL_SOCKET},
            {"index": 2, "op": "SCMP_CMP_EQ", "value": option},
        ]
        # Without an error, as when the kernel limits a buffer to the default size.
        ignored = {"action": "SCMP_ACT_ERRNO", "errnoRet": 0}
        rules.append({"names": ["setsockopt"], **ignored, "args": arguments})
    return _compiled({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules})


def _compiled(profile: dict[str, Any]) -> bytes:
    library = _library()
    context = ctypes.c_void_p(library.seccomp_init(_action(profile["defaultAction"], profile)))
    try:
        for rule in profile["syscalls"]:
            for name in rule["names"]:
                _add(library, context, name, rule)
        file = os.memfd_create("filter")
        try:
            _require(library.seccomp_export_bpf(context, file))
            return os.pread(file, os.fstat(file).st_size, 0)
        finally:
            os.close(file)
    finally:
        library.seccomp_release(context)


def _add(library: ctypes.CDLL, context: ctypes.c_void_p, name: str, rule: dict[str, Any]) -> None:
    number = library.seccomp_syscall_resolve_name(name.encode())
    if number < 0:
        return  # this machine's kernel, or the library, knows no such call
    arguments = [
        _Comparison(
            comparison["index"],
            COMPARISONS[comparison["op"]],
            comparison["value"],
            comparison.get("valueTwo", 0),
        )
        for comparison in rule.get("args", [])
    ]
    array = (_Comparison * len(arguments))(*arguments)
    action = _action(rule["action"], rule)
    _require(library.seccomp_rule_add_array(context, action, number, len(arguments), array))


def _action(name: str, rule: dict[str, Any]) -> int:
    if name == "SCMP_ACT_ALLOW":
        return ALLOW
    return ERRNO | int(rule.get("errnoRet", rule.get("defaultErrnoRet", EPERM)))


def _require(code: int) -> None:
    if code != 0:
        raise OSError(-code, f"libseccomp refuses a rule: {os.strerror(-code)}")


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        raise ConfigError(
            f"bubblewrap sandboxes need {LIBRARY}, which this machine lacks: on Debian and Ubuntu, "
            "apt install libseccomp2"
        ) from None
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_release.argtypes = [ctypes.c_void_p]
    library.seccomp_release.restype = None
    library.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    library.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.POINTER(_Comparison),
    ]
    library.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
    return library
