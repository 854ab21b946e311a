"""The network and the volumes of one episode.

An internal network still contains its host: the bridge has an address there, by which a container
reaches every port that this machine listens on. So the bridge gets none. Nor is there a resolver
that would query others; see ``container/joined.py``.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Network

from vf.runtime.errors import ConfigError, SandboxError
from vf.sandbox.container.docker_engine import NOT_THERE, Engine, EngineRefused
from vf.sandbox.container.reaper import give_up, this_process
from vf.sandbox.container.remains import forget, remember

log = logging.getLogger("vf.sandbox")

# Each episode has 29 of the addresses that RFC 2544 sets aside for tests within a network. The
# engine's own pools have place for about 30 networks; these have place for 4,096.
POOL = IPv4Network("198.18.0.0/15")
PREFIX = 27
TRIES = 50
VOLUME = 256 * 2**20  # bytes


@dataclass(frozen=True, slots=True)
class Network:
    """An episode's network, and its volumes.

    Attributes:
        name: The engine's name.
        subnet: Its addresses.
        volumes: The engine's names of the volumes, by their names in the episode.
    """

    name: str
    subnet: IPv4Network
    volumes: dict[str, str]

    def addresses(self) -> Iterator[str]:
        """Yield the addresses for containers: without the first, that of a missing gateway."""
        return map(str, itertools.islice(self.subnet.hosts(), 1, None))


@contextlib.asynccontextmanager
async def open_network(
    engine: Engine, volumes: Iterable[str], *, lifetime: float
) -> AsyncIterator[Network]:
    """Make a network with no way out, and volumes in memory; both are removed on the way out.

    Args:
        engine: The engine that runs the episode.
        volumes: The volumes' names in the episode.
        lifetime: Seconds until the reaper may remove them.

    Raises:
        ConfigError: If the engine cannot make such networks.
        SandboxError: If the engine failed.
    """
    if not (await engine.features()).networks:
        raise ConfigError(
            "this engine has an address in every network that it makes, so side services could "
            "reach its machine: tasks with a Compose file need Docker 20.10 or later"
        )
    labels = this_process().labels(lifetime)
    name = f"vf-{this_process().run}-{secrets.token_hex(4)}"
    named = {volume: f"{name}-{index}" for index, volume in enumerate(volumes)}
    # A request that was cancelled is still carried out, and when an event loop ends there may be no
    # time left to remove anything.
    remember(name, engine, partial(_remove_now, engine, name, list(named.values())))
    complete = False
    try:
        subnet = await _create_network(engine, name, labels)
        for volume in named.values():
            await engine.call(
                "create_volume",
                volume,
                driver="local",
                driver_opts={
                    "type": "tmpfs",
                    "device": "tmpfs",
                    "o": f"size={VOLUME},mode=1777,nosuid,nodev",
                },
                labels=labels,
            )
        complete = True
        yield Network(name, subnet, named)
    finally:
        gone = [await _remove(engine, *removal) for removal in _removals(name, named.values())]
        if complete and all(gone):
            forget(name)


async def _create_network(engine: Engine, name: str, labels: dict[str, str]) -> IPv4Network:
    for _ in range(TRIES):
        subnet = _any_subnet()
        try:
            await engine.call(
                "create_network",
                name,
                driver="bridge",
                internal=True,
                options={"com.docker.network.bridge.inhibit_ipv4": "true"},
                ipam={"Driver": "default", "Config": [{"Subnet": str(subnet)}]},
                labels=labels,
            )
        except EngineRefused as error:
            if "overlaps" not in str(error):
                raise
        else:
            return subnet
    raise SandboxError(f"the engine has no place for a network in {POOL}")


def _any_subnet() -> IPv4Network:
    count = 2 ** (PREFIX - POOL.prefixlen)
    start = int(POOL.network_address) + secrets.randbelow(count) * 2 ** (32 - PREFIX)
    return IPv4Network((start, PREFIX))


async def _remove(engine: Engine, method: str, name: str) -> bool:
    """Remove a network or volume; return whether it is gone. If not, the reaper tries again."""
    try:
        await engine.call(method, name)
    except SandboxError as error:
        if not isinstance(error, EngineRefused) or error.status != NOT_THERE:
            log.warning("%s of an episode could not be removed yet: %s", name, error)
            give_up(name)
            return False
    return True


def _removals(network: str, volumes: Iterable[str]) -> list[tuple[str, str]]:
    return [("remove_network", network), *(("remove_volume", volume) for volume in volumes)]


def _remove_now(engine: Engine, network: str, volumes: list[str]) -> None:
    """Remove a network and volumes with the containers that use them. Blocks."""
    for container in engine.call_now("containers", all=True, filters={"network": network}):
        with contextlib.suppress(EngineRefused):
            engine.call_now("remove_container", container["Id"], force=True, v=True)
    for method, name in _removals(network, volumes):
        with contextlib.suppress(EngineRefused):
            engine.call_now(method, name)
