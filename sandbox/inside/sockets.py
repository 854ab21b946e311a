"""The memory that sockets hold in the kernel, which does not count as any process's.

It is requested over netlink for the sockets of this network namespace:
https://man7.org/linux/man-pages/man7/sock_diag.7.html. The filter of system calls lets no program
open such a connection, so the supervisor inherits one from its parent.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import Iterator  # noqa: UP035  (Python 3.9 runs this)

IPPROTO_TCP, IPPROTO_UDP = 6, 17
SOCK_DIAG_BY_FAMILY, REQUEST, DUMP = 20, 0x1, 0x300
DONE, ERROR = 3, 2  # types of a netlink message
EVERY_STATE = 0xFFFFFFFF
INET_MEMORY, UNIX_MEMORY, UNIX_SHOW_MEMORY = 7, 5, 0x20
# struct inet_diag_req_v2, and struct unix_diag_req
INET_REQUEST, UNIX_REQUEST = struct.Struct("=BBBBI48s"), struct.Struct("=BBHIIIII")
HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, number, port
ATTRIBUTE = struct.Struct("=HH")  # struct nlattr: length, type
INET_SIZE, UNIX_SIZE = 72, 16  # of struct inet_diag_msg and struct unix_diag_msg
INET_INODE, UNIX_INODE = 68, 4  # where they hold the inode
# Of the numbers in SK_MEMINFO: received, allocated ahead, queued to be sent, in the backlog; of a
# Unix socket what it has sent and nobody has read.
INET_PARTS, UNIX_PARTS = (0, 4, 5, 7), (2,)
INET = [
    (INET_REQUEST.pack(family, protocol, 1 << INET_MEMORY - 1, 0, EVERY_STATE, b""), INET_SIZE)
    for family in (socket.AF_INET, socket.AF_INET6)
    for protocol in (IPPROTO_TCP, IPPROTO_UDP)
]
ANY = 2**32 - 1
UNIX = (
    UNIX_REQUEST.pack(socket.AF_UNIX, 0, 0, EVERY_STATE, 0, UNIX_SHOW_MEMORY, ANY, ANY),
    UNIX_SIZE,
)
ANSWER = 2**18  # bytes of an answer that are read at a time
PATIENCE = 2.0  # seconds for the kernel to answer


class SocketMemory:
    """What the sockets of this network namespace hold.

    Args:
        descriptor: A netlink socket of the family NETLINK_SOCK_DIAG, which is taken over.
    """

    def __init__(self, descriptor: int) -> None:
        self._netlink = socket.socket(fileno=descriptor)
        self._netlink.settimeout(PATIENCE)
        self._requests = 0

    def sizes(self) -> dict[int, int]:
        """Return the bytes of each socket by its inode, which is 0 where no process has it.

        What a kernel does not report, such as Unix sockets without CONFIG_UNIX_DIAG, is missing.
        """
        sizes: dict[int, int] = {}
        for request, header_size in [*INET, UNIX]:
            with contextlib.suppress(OSError):
                for inode, size in self._ask(request, header_size):
                    sizes[inode] = sizes.get(inode, 0) + size
        return sizes

    def _ask(self, request: bytes, header_size: int) -> Iterator[tuple[int, int]]:
        self._requests += 1
        header = HEADER.size + len(request), SOCK_DIAG_BY_FAMILY, REQUEST | DUMP, self._requests, 0
        self._netlink.send(HEADER.pack(*header) + request)
        while True:
            data = self._netlink.recv(ANSWER)
            offset = 0
            while offset < len(data):
                length, kind, _, number, _ = HEADER.unpack_from(data, offset)
                if number == self._requests:  # else of a request that was given up
                    if kind in (DONE, ERROR):
                        return
                    yield _memory(data[offset + HEADER.size : offset + length], header_size)
                offset += _aligned(length)


def sockets_of(pid: int) -> set[int]:
    """Return the inodes of the sockets that a process has open."""
    inodes = set()
    with contextlib.suppress(OSError):
        for descriptor in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                name = os.readlink(descriptor.path)
                if name.startswith("socket:["):
                    inodes.add(int(name[len("socket:[") : -1]))
    return inodes


def _memory(message: bytes, header_size: int) -> tuple[int, int]:
    """Return a socket's inode and bytes, from the kernel's message about it."""
    inet = header_size == INET_SIZE
    (inode,) = struct.unpack_from("=I", message, INET_INODE if inet else UNIX_INODE)
    attribute, parts = (INET_MEMORY, INET_PARTS) if inet else (UNIX_MEMORY, UNIX_PARTS)
    offset = header_size
    while offset < len(message):
        length, kind = ATTRIBUTE.unpack_from(message, offset)
        if kind == attribute:
            numbers = struct.unpack_from(f"={(length - 4) // 4}I", message, offset + 4)
            return inode, sum(numbers[part] for part in parts)
        offset += _aligned(length)
    return inode, 0


def _aligned(length: int) -> int:
    return (length + 3) & ~3
