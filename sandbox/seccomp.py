"""The system calls that a container may make: one list for all engines.

It has what programs, interpreters, compilers and version control need; all else fails with EPERM.
It is shorter than the default lists of engines, which also serve containers with privileges, and
differ between versions. It deliberately omits some calls that code without privileges could use:

- ``io_uring_*``: a large part of the kernel, and a way past this very filter.
- Sockets other than Unix, IPv4, IPv6 and routing netlink: AF_VSOCK reaches the hypervisor, AF_ALG
  and others reach kernel code that nothing here needs.
- Namespaces (``unshare``, ``setns``, flags of ``clone``), mounts, keys, BPF, performance counters,
  ``userfaultfd``, ``memfd_secret``.
- The 32-bit calls of a 64-bit machine, which no rule about arguments would reach.

Names that a kernel or an engine does not know are ignored there, so the list serves all of them.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

FILES = """
    access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat
    faccessat2 fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fdatasync
    fgetxattr flistxattr flock fremovexattr fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd
    getdents getdents64 getxattr getxattrat ioctl lchown lgetxattr link linkat listxattr listxattrat
    llistxattr lremovexattr lseek lsetxattr lstat mkdir mkdirat mknod mknodat name_to_handle_at
    newfstatat open openat openat2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead
    readlink readlinkat readv removexattr removexattrat rename renameat renameat2 rmdir sendfile
    setxattr setxattrat splice stat statfs statx symlink symlinkat sync sync_file_range
    sync_file_range2 syncfs tee truncate umask unlink unlinkat utime utimensat utimes vmsplice write
    writev
"""
MEMORY = """
    brk madvise mbind get_mempolicy set_mempolicy membarrier memfd_create mincore mlock mlock2
    mlockall mmap mprotect mremap mseal msync munlock munlockall munmap pkey_alloc pkey_free
    pkey_mprotect remap_file_pages
"""
PROCESSES = """
    arch_prctl cacheflush capget capset execve execveat exit exit_group fork get_robust_list
    get_thread_area getcpu getegid geteuid getgid getgroups getpgid getpgrp getpid getppid
    getpriority getresgid getresuid getrlimit getrusage getsid gettid getuid ioprio_get ioprio_set
    kill landlock_add_rule landlock_create_ruleset landlock_restrict_self modify_ldt pause
    pidfd_open pidfd_send_signal prctl prlimit64 process_madvise process_mrelease process_vm_readv
    process_vm_writev ptrace restart_syscall riscv_flush_icache riscv_hwprobe rseq rt_sigaction
    rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait
    rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr
    sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr
    sched_setparam sched_setscheduler sched_yield seccomp set_robust_list set_thread_area
    set_tid_address setfsgid setfsuid setgid setgroups setpgid setpriority setregid setresgid
    setresuid setreuid setrlimit setsid setuid sigaltstack sysinfo tgkill time times tkill uname
    vfork wait4 waitid
"""
WAITING = """
    alarm clock_getres clock_gettime clock_nanosleep epoll_create epoll_create1 epoll_ctl
    epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 fanotify_mark futex futex_requeue
    futex_wait futex_waitv futex_wake getitimer getrandom gettimeofday inotify_add_watch
    inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents
    io_setup io_submit nanosleep pipe pipe2 poll ppoll pselect6 select setitimer signalfd signalfd4
    timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create
    timerfd_gettime timerfd_settime
"""
TALKING = """
    accept accept4 bind connect getpeername getsockname getsockopt listen mq_getsetattr mq_notify
    mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd recvfrom recvmmsg
    recvmsg semctl semget semop semtimedop sendmmsg sendmsg sendto setsockopt shmat shmctl shmdt
    shmget shutdown
"""
GROUPS = (FILES, MEMORY, PROCESSES, WAITING, TALKING)

EPERM, ENOSYS = 1, 38
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, NETLINK_ROUTE = 1, 2, 10, 16, 0
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
NAMESPACES = 0x7E020000
# A descriptor that is ready may signal whatever process root says, of any user; with this, by any
# signal. The commands of fcntl have no bits above these.
F_SETSIG, COMMANDS = 10, 12
# Linux, as 32-bit Linux, either with 2.6 in `uname`; the last is a question.
PERSONALITIES = (0, 0x0008, 0x20000, 0x20008, 0xFFFFFFFF)


@cache
def seccomp_profile() -> str:
    """Return the profile as JSON, in the form that Docker's engine reads."""
    rules = [_allow(*" ".join(GROUPS).split())]
    for family in (AF_UNIX, AF_INET, AF_INET6):
        rules.append(_allow("socket", "socketpair", arguments=[_equal(0, family)]))
    rules.append(_allow("socket", arguments=[_equal(0, AF_NETLINK), _equal(2, NETLINK_ROUTE)]))
    rules += [_allow("personality", arguments=[_equal(0, value)]) for value in PERSONALITIES]
    rules.append(_allow("clone", arguments=[_masked(0, NAMESPACES, 0)]))
    for bit in (1 << number for number in range(COMMANDS)):
        rules.append(_allow("fcntl", arguments=[_masked(1, bit, ~F_SETSIG & bit)]))
    # Its flags are in memory, where no filter sees them: without it the C library uses clone.
    rules.append({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS})
    return json.dumps(
        {"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": EPERM, "syscalls": rules},
        separators=(",", ":"),
    )


def _allow(*names: str, arguments: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"names": list(names), "action": "SCMP_ACT_ALLOW", "args": arguments or []}


def _masked(index: int, mask: int, value: int) -> dict[str, Any]:
    return {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


def _equal(index: int, value: int) -> dict[str, Any]:
    return {"index": index, "value": value, "op": "SCMP_CMP_EQ"}
