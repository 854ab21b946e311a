"""The allow-list: what an entry covers, and which addresses count as public."""

from __future__ import annotations

import socket
from ipaddress import ip_address

import pytest

from vf.runtime.errors import ConfigError
from vf.sandbox.services.allow import AllowList, is_public, parse_target

PUBLIC = "93.184.216.34"


def permits(entry: str, host: str, port: int = 443, address: str | None = None) -> bool:
    target = parse_target(host, port)
    at = address or (str(target.host) if not isinstance(target.host, str) else PUBLIC)
    found = AllowList([entry])
    return found.may_request(target) and found.permits(target, ip_address(at))


@pytest.mark.parametrize(
    ("entry", "host", "port", "allowed"),
    [
        ("example.com", "example.com", 443, True),
        ("example.com", "EXAMPLE.com.", 80, True),
        ("example.com", "www.example.com", 443, False),
        ("example.com", "example.com.evil.net", 443, False),
        ("example.com:443", "example.com", 443, True),
        ("example.com:443", "example.com", 80, False),
        ("*.example.com", "a.b.example.com", 443, True),
        ("*.example.com", "example.com", 443, False),
        ("*.example.com", "badexample.com", 443, False),
        ("*.example.com:8443", "a.example.com", 443, False),
        ("bücher.example", "xn--bcher-kva.example", 443, True),
        ("*", "anything.example", 25, True),
        ("*:443", "anything.example", 443, True),
        ("*:443", "anything.example", 80, False),
        ("*", PUBLIC, 443, True),
        (PUBLIC, PUBLIC, 443, True),
        (f"{PUBLIC}:80", PUBLIC, 443, False),
        ("10.0.0.0/8", "10.1.2.3", 80, True),
        ("10.0.0.0/8:443", "10.1.2.3", 80, False),
        ("2001:db8::/32", "[2001:db8::1]", 80, True),
        ("[2001:db8::1]:80", "[2001:db8::1]", 80, True),
        ("[2001:db8::1]:80", "[2001:db8::1]", 81, False),
        (PUBLIC, "example.com", 443, False),  # a name has to be listed by name
    ],
)
def test_an_entry_covers_what_it_says(entry: str, host: str, port: int, allowed: bool) -> None:
    assert permits(entry, host, port) is allowed


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "192.168.1.1", "172.17.0.1", "100.64.0.1", "0.0.0.0"),
        *("169.254.169.254", "168.63.129.16", "224.0.0.1", "255.255.255.255", "198.18.0.1"),
        *("::1", "::", "fe80::1", "fd00:ec2::254", "fec0::1", "ff02::1"),
        *("::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::169.254.169.254", "2002:7f00:1::"),
    ],
)
def test_what_is_not_public_is_reached_only_where_it_is_listed_itself(address: str) -> None:
    assert not is_public(ip_address(address))
    assert not permits("*", "name.example", address=address)
    assert not permits("name.example", "name.example", address=address)
    assert not permits("*", f"[{address}]" if ":" in address else address)
    both = AllowList(["name.example", address])
    assert both.permits(parse_target("name.example", 80), ip_address(address))


@pytest.mark.parametrize("address", [PUBLIC, "2606:4700::1111", "64:ff9b::93.184.216.34"])
def test_a_public_address_is_public(address: str) -> None:
    assert is_public(ip_address(address))


def test_an_address_of_this_machine_is_not_public(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ip_address("127.0.0.1")
    monkeypatch.setattr(type(own), "is_global", True)
    with socket.socket() as probe:
        probe.bind((str(own), 0))
    assert not is_public(own)
    assert is_public(ip_address("93.184.216.34"))


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "a b",
        "http://example.com",
        "exa*mple.com",
        "*.10.0.0.1:x",
        "a:0",
        "a:99999",
        "[::1",
        "*.",
    ],
)
def test_a_wrong_entry_is_named(entry: str) -> None:
    with pytest.raises(ConfigError, match="is no host") as caught:
        AllowList([entry])
    assert repr(entry) in str(caught.value)
