"""A port is free, or whoever has it is named."""

from __future__ import annotations

import os
import socket

import pytest

from vf.inference.ports import choose_port
from vf.runtime.errors import ConfigError


def test_a_port_is_chosen_or_refused() -> None:
    drawn = [choose_port("127.0.0.1", 0) for _ in range(500)]
    assert max(drawn) < 30_000  # below those of outgoing connections, and of Kubernetes' nodes
    assert len({*drawn}) == 500  # nothing listens at them yet
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError) as error:
            choose_port("127.0.0.1", port)
    said = str(error.value)
    assert f"cannot listen on port {port} of" in said
    assert f"process {os.getpid()} has it" in said
    assert choose_port("127.0.0.1", port) == port


def test_a_host_that_is_not_this_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"port 0 of 192\.0\.2\.1 .* change inference\.host"):
        choose_port("192.0.2.1", 0)
