"""Ways out: the engine, the network, the kernel's privileges. None of them is there."""

from __future__ import annotations

import ast
import asyncio
import signal

import pytest

from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.docker_sandbox import DockerSandbox

from .conftest import AS_ROOT_TOO, IN_CONTAINERS, PROFILE, Arena

CONNECT = """
import socket, sys
family, address = sys.argv[1], sys.argv[2]
sock = socket.socket(getattr(socket, family), socket.SOCK_STREAM)
sock.settimeout(3)
try:
    sock.connect(address if family == 'AF_UNIX' else (address, int(sys.argv[3])))
except OSError as error:
    print('refused', error)
else:
    print('CONNECTED')
"""


@pytest.mark.parametrize(
    "target",
    [
        ["AF_UNIX", "/var/run/docker.sock"],
        ["AF_UNIX", "/run/docker.sock"],
        ["AF_UNIX", "/run/containerd/containerd.sock"],
        ["AF_UNIX", "/run/docker/containerd/containerd.sock"],
        ["AF_INET", "169.254.169.254", "80"],
        ["AF_INET6", "fd00:ec2::254", "80"],
        ["AF_INET", "172.17.0.1", "2375"],
        ["AF_INET", "172.17.0.1", "22"],
        ["AF_INET", "8.8.8.8", "53"],
        ["AF_INET", "host.docker.internal", "80"],
        ["AF_INET", "gateway.docker.internal", "80"],
    ],
    ids=lambda target: "-".join(target[1:]),
)
def test_nobody_outside_can_be_reached(arena: Arena, target: list[str]) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        result = await sandbox.exec(["python3", "-c", CONNECT, *target], timeout=20)
        assert result.stdout.startswith("refused"), result

    arena.attack(attack)


def test_no_name_is_resolved(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        code = "import socket\nsocket.getaddrinfo('example.com', 80)"
        result = await sandbox.exec(["python3", "-c", code], timeout=20)
        assert "gaierror" in result.stderr

    arena.attack(attack)


def test_there_is_no_way_to_a_gateway_and_no_raw_socket(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        names = "import socket\nprint([name for _, name in socket.if_nameindex()])"
        assert (await sandbox.exec(["python3", "-c", names])).stdout == "['lo']\n"
        assert (await sandbox.exec("tail -n +2 /proc/net/route")).stdout == ""
        code = "import socket\nsocket.socket(socket.{}, socket.SOCK_RAW, {})"
        for family, protocol in (("AF_INET", 1), ("AF_PACKET", 3)):
            result = await sandbox.exec(["python3", "-c", code.format(family, protocol)])
            assert "Operation not permitted" in result.stderr

    arena.attack(attack)


def test_a_socket_with_an_abstract_name_is_the_sandboxs_own(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        result = await sandbox.exec("grep -c @ /proc/net/unix")
        assert result.stdout == "0\n"

    arena.attack(attack)


@AS_ROOT_TOO
def test_setuid_gives_nothing(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        code = (
            "import os\n"
            "other = 64999 if os.getuid() == 0 else 0\n"
            "for call, arguments in ((os.setuid, (other,)), (os.setgid, (other,)),\n"
            "        (os.setgroups, ([0],)), (os.setresuid, (other,) * 3), (os.chroot, ('/',)),\n"
            "        (os.seteuid, (64999,)), (os.chown, ('/tmp', 64999, 64999))):\n"
            "    try: call(*arguments); print('WON', call)\n"
            "    except OSError: pass\n"
            "print(os.getresuid(), os.getresgid())"
        )
        uid = int((await sandbox.exec(["id", "-u"])).stdout)
        expected = f"{(uid,) * 3} {(uid,) * 3}\n"
        assert (await sandbox.exec(["python3", "-c", code])).stdout == expected
        assert (await sandbox.python(code)).stdout == expected
        # A program that is setuid root, be it the image's or one's own, is started as any other.
        await sandbox.exec("cp /usr/bin/id own; chmod 6755 own")
        assert (await sandbox.exec(["./own", "-u"])).stdout == f"{uid}\n"
        for name in ("su", "mount", "passwd"):
            line = f"f=$(command -v {name}) && timeout 3 $f -c id root </dev/null"
            assert "uid=0" not in (await sandbox.exec(line)).stdout

    arena.attack(attack)


@pytest.mark.parametrize(
    "command",
    [
        "mount -t tmpfs none /mnt",
        "mount -t proc proc /proc",
        "mount -o remount,rw /",
        "mount --bind /workspace /etc",
        "umount /tmp",
        "unshare -r true",
        "unshare -m true",
        "unshare -n true",
        "unshare -p -f true",
        "nsenter -t 1 -a true",
        "chroot / true",
        "mknod /tmp/sda b 8 0",
        "mknod /tmp/mem c 1 1",
        "hostname owned",
        "date -s 2000-01-01",
        "dmesg",
        "chown root /workspace",
        "nice -n -5 id",
        "swapon /workspace/swap",
        "sysctl -w kernel.panic=1",
        "ip link set lo down",
        "ulimit -n 1000000",
    ],
)
@AS_ROOT_TOO
def test_what_takes_privileges_is_refused(arena: Arena, command: str) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        result = await sandbox.exec(f"{command} && echo WON", timeout=20)
        if command.startswith("nice"):
            assert "Permission denied" in result.stderr
        else:
            assert "WON" not in result.stdout, result

    arena.attack(attack)


SYSCALLS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(4096)
p = ctypes.addressof(buffer)
calls = {
    'mount': (165, b'none', b'/tmp', b'tmpfs', 0, 0), 'umount2': (166, b'/tmp', 2),
    'pivot_root': (155, b'/', b'/'), 'chroot': (161, b'/'),
    'unshare user': (272, 0x10000000), 'unshare mount': (272, 0x20000), 'setns': (308, 0, 0),
    'init_module': (175, p, 10, b''), 'kexec_load': (246, 0, 0, 0, 0), 'reboot': (169, 0, 0, 0, 0),
    'swapon': (167, b'/tmp/x', 0), 'sethostname': (170, b'x', 1), 'settimeofday': (164, p, 0),
    'bpf': (321, 0, p, 128), 'perf_event_open': (298, p, 0, -1, -1, 0), 'iopl': (172, 3),
    'keyctl': (250, 0, -3, 1), 'add_key': (248, b'user', b'x', b'y', 1, -3),
    'userfaultfd': (323, 0), 'open_by_handle_at': (304, 0, p, 0), 'quotactl': (179, 0, 0, 0, 0),
    'fsopen': (430, b'tmpfs', 0), 'move_mount': (429, 0, b'', 0, b'', 0),
    'io_uring_setup': (425, 1, p), 'ptrace 1': (101, 16, 1, 0, 0), 'acct': (163, b'/tmp/x'),
    'personality': (135, 0x0040000), 'syslog': (103, 2, p, 100), 'lookup_dcookie': (212, 0, p, 9),
}
print([name for name, call in calls.items() if libc.syscall(*call) >= 0])
"""


@AS_ROOT_TOO
def test_no_privileged_system_call_succeeds(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        result = await sandbox.exec(["python3", "-c", SYSCALLS])
        won = set(result.stdout.strip("[]\n").replace("'", "").split(", ")) - {""}
        assert result.ok, result
        assert won == set()

    arena.attack(attack)


FAMILIES = """
import socket
opened = []
for family in range(1, 60):
    for protocol in (0, 4):
        try: socket.socket(family, socket.SOCK_DGRAM, protocol)
        except OSError: continue
        opened.append((family, protocol))
print(opened)
"""


def test_only_usual_sockets_can_be_had(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        unix, inet, inet6, routing_netlink = 1, 2, 10, 16
        result = await sandbox.exec(["python3", "-c", FAMILIES])
        assert {*ast.literal_eval(result.stdout)} <= {
            (n, 0) for n in (unix, inet, inet6, routing_netlink)
        }

    arena.attack(attack)


OLD_CALL = """
import ctypes, mmap, platform
if platform.machine() != 'x86_64': raise SystemExit(159)
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
prot = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
code = mmap.mmap(-1, 4096, flags, prot)
code.write(b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3')  # getpid, as 32-bit programs call it
call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
print('WON', call())
"""


def test_calls_of_another_architecture_end_the_program(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        result = await sandbox.exec(["python3", "-c", OLD_CALL])
        assert (result.stdout, result.returncode) == ("", 128 + signal.SIGSYS)

    arena.attack(attack)


TAKE_ALL = """
import ctypes
libc = ctypes.CDLL(None)
count = 0
while libc.inotify_init() >= 0: count += 1
count
"""


def test_neighbours_do_not_share_what_linux_counts_by_user(engine: Engine) -> None:
    async def run() -> list[int]:
        async with (
            await DockerSandbox.create(engine, PROFILE) as greedy,
            await DockerSandbox.create(engine, PROFILE) as neighbour,
        ):  # the first one's interpreter holds what it has taken
            return [int((await box.python(TAKE_ALL)).stdout) for box in (greedy, neighbour)]

    first, second = asyncio.run(run())
    assert first == second > 0


@IN_CONTAINERS
def test_the_model_cannot_become_root_in_the_sandbox(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        # Only the client may ask for it, and even then it is a root without power.
        line = "id -u; mount -t tmpfs none /mnt"
        result = await sandbox.exec(line, user="root", cwd="/")
        assert result.stdout == "0\n"
        assert not result.ok
        result = await sandbox.exec("echo x > /planted", user="root", cwd="/")
        assert arena.profile is not None
        assert result.ok == arena.profile.writable
        result = await sandbox.exec("grep CapPrm /proc/self/status", user="root", cwd="/")
        assert result.stdout == f"CapPrm:\t{0:016x}\n"

    arena.attack(attack)


def test_the_machine_shows_nothing_of_itself(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        result = await sandbox.exec("hostname; ls /proc | grep -c '^[0-9]'; env")
        lines = result.stdout.splitlines()
        assert lines[0] == "sandbox"
        assert int(lines[1]) < 30
        assert {line.split("=")[0] for line in lines[2:]} <= {
            *("HOME", "HOSTNAME", "LANG", "PATH", "PWD", "PYTHONDONTWRITEBYTECODE", "OLDPWD"),
            *("SHLVL", "_", "LC_CTYPE", "TMPDIR", "USER", "LOGNAME", "SHELL", "DEBIAN_FRONTEND"),
        }
        hidden = await sandbox.exec("cat /proc/kcore /proc/keys /proc/timer_list /proc/sched_debug")
        assert hidden.stdout == ""

    arena.attack(attack)
