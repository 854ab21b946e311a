"""Allow-lists of hosts: their entries, and the check of the addresses that names resolve to.

A name alone is not enough: the owner of its zone can point it at this machine or its network. So
the address is checked too, before connecting. One that is not public is allowed only if an entry of
the list names the address, or a range that contains it.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import TypeAlias

from vf.runtime.errors import ConfigError

Ip: TypeAlias = IPv4Address | IPv6Address

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NAT64 = IPv6Network("64:ff9b::/96")
# A cloud's metadata service, at an address that looks public.
_METADATA = frozenset({IPv4Address("168.63.129.16")})


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a connection: a name, in lower case, or an address; and a port."""

    host: str | Ip
    port: int

    def __str__(self) -> str:
        """Return it in the notation of URLs."""
        host = f"[{self.host}]" if isinstance(self.host, IPv6Address) else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class _Entry:
    """One line of the list: either a pattern of names or a network."""

    name: str
    network: IPv4Network | IPv6Network | None
    port: int | None

    def names(self, target: Target) -> bool:
        if self.port not in (None, target.port):
            return False
        if self.name == "*":
            return True
        if not isinstance(target.host, str):
            return False
        if self.name.startswith("*."):
            return target.host.endswith(self.name[1:])
        return bool(self.name) and target.host == self.name

    def holds(self, address: Ip, port: int) -> bool:
        return self.port in (None, port) and self.network is not None and address in self.network


class AllowList:
    """The hosts that may be reached.

    Args:
        entries: The allowed hosts: ``host``, ``*.host`` (every name below it), an address or a
            range of them, each with an optional ``:port``; an IPv6 address with a port is in
            brackets. ``*`` is every public host.

    Raises:
        ConfigError: If an entry is none of these.
    """

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self.entries = tuple(entries)
        self._parsed = [_parse(entry) for entry in self.entries]

    def may_request(self, target: Target) -> bool:
        """Return whether a target may be requested; only then is its name looked up."""
        if any(entry.names(target) for entry in self._parsed):
            return True
        return not isinstance(target.host, str) and self._lists(target.host, target.port)

    def permits(self, target: Target, address: Ip) -> bool:
        """Return whether a target may be reached at an address that is its own or its name's."""
        if self._lists(address, target.port):
            return self.may_request(target)
        return any(entry.names(target) for entry in self._parsed) and is_public(address)

    def _lists(self, address: Ip, port: int) -> bool:
        return any(entry.holds(address, port) for entry in self._parsed)


def parse_target(host: str, port: int) -> Target:
    """Return the target of a request.

    Raises:
        ValueError: If it names no host, or no port.
    """
    if not 0 < port < 2**16:
        raise ValueError(f"{port} is no port")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    with contextlib.suppress(ValueError):
        return Target(ip_address(bare), port)
    return Target(_hostname(host), port)


def is_public(address: Ip) -> bool:
    """Return whether an address is one of the public Internet's, and not of this machine's own."""
    return all(map(_is_global, _with_embedded(address))) and not _is_this_machine(address)


def _is_global(address: Ip) -> bool:
    if address in _METADATA or address.is_multicast or address.is_reserved:
        return False
    return address.is_global and not (address.version == 6 and address.is_site_local)


def _with_embedded(address: Ip) -> Iterator[Ip]:
    """Yield an address, and the IPv4 addresses to which its packets would be routed."""
    if isinstance(address, IPv4Address):
        yield address
        return
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped  # the kernel uses IPv4: the outer address means nothing
        return
    if address in _NAT64:
        yield IPv4Address(int(address) & 0xFFFFFFFF)
        return
    yield address
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo


def _is_this_machine(address: Ip) -> bool:
    """Return whether one of this machine's interfaces has it: only then can it be bound."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((str(address), 0))
        return True
    return False


def _parse(entry: str) -> _Entry:
    try:
        host, port = _split(entry)
        if "*" not in host:
            with contextlib.suppress(ValueError):
                return _Entry("", ip_network(host, strict=False), port)
        if host == "*":
            return _Entry(host, None, port)
        star = "*." if host.startswith("*.") else ""
        return _Entry(star + _hostname(host.removeprefix(star)), None, port)
    except ValueError as error:
        raise ConfigError(
            f"allow: {entry!r} is no host: {error}. An entry is host, *.host, * (all public "
            "hosts), an IP address or a range such as 10.0.0.0/8, each with an optional :port"
        ) from None


def _split(entry: str) -> tuple[str, int | None]:
    """Return an entry's host and port."""
    if entry.startswith("["):
        host, bracket, rest = entry[1:].partition("]")
        if not bracket or rest[:1] not in ("", ":"):
            raise ValueError("its bracket is not closed")
        text = rest[1:]
        has_port = bool(rest)
    elif entry.count(":") > 1:
        return entry, None
    else:
        host, colon, text = entry.partition(":")
        has_port = bool(colon)
    if not has_port:
        return host, None
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 2**16:
        raise ValueError(f"{text!r} is no port")
    return host, int(text)


def _hostname(text: str) -> str:
    """Return a name in the form in which it is looked up.

    Raises:
        ValueError: If it is not a host name.
    """
    try:
        name = text.removesuffix(".").encode("idna").decode().lower()
    except UnicodeError:
        raise ValueError(f"{text[:80]!r} is no host name") from None
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise ValueError(f"{text[:80]!r} is no host name")
    return name
