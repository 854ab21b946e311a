"""The backend that ``sandbox = "auto"`` means on this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import sys
from collections.abc import Iterable, Iterator

from vf.runtime.errors import ConfigError
from vf.sandbox.container.address import Address

CONNECT_TIMEOUT = 5.0  # seconds for the engine's socket to take a connection
OR_AN_ENGINE = (
    'No container engine was found, which "auto" would take: {}. To have one on Debian: apt-get '
    "install docker.io, then systemctl start docker; one elsewhere is named by DOCKER_HOST"
)


def chosen(names: Iterable[str], shared: Iterable[str]) -> str:
    """Return the backend to use: ``"docker"`` if an engine responds, or a setting needs one.

    Blocks until the engine's socket takes a connection or refuses it. What the engine then lacks,
    such as the image, is found by its own check.

    Args:
        names: The settings that are given.
        shared: The settings that ``"bubblewrap"`` has as well.
    """
    if set(names) - set(shared) or not sys.platform.startswith("linux") or not engine_missing():
        return "docker"
    return "bubblewrap"


@contextlib.contextmanager
def or_an_engine() -> Iterator[None]:
    """Add a hint to install an engine, if none is there, to an error of bubblewrap.

    Raises:
        ConfigError: If it was raised inside; with a hint if no engine is there.
    """
    try:
        yield
    except ConfigError as error:
        if missing := engine_missing():
            raise ConfigError(f"{error}. {OR_AN_ENGINE.format(missing)}") from error
        raise


def engine_missing() -> str:
    """Return why no container engine can be used; empty if one responds, or is named by URL."""
    spec = importlib.util.find_spec("docker")
    if spec is None or spec.origin is None:  # without an origin, a folder with that name
        return "the Python package docker is missing (pip install 'vf-rl[sandbox]')"
    try:
        address = Address.from_environment()
    except ValueError:
        return ""  # DOCKER_HOST is set: connecting raises the error
    if address.parts.scheme != "unix":
        return ""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(CONNECT_TIMEOUT)
        try:
            connection.connect(address.path)
        except OSError as error:
            return f"{address.path}: {error.strerror or error}"
    return ""
