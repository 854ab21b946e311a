"""What the containers of one episode share: a network of their own, and volumes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# The names of the network stand in /etc/hosts. The engine's resolver would ask another one for all
# others, perhaps from this machine's own network: this one is the container itself, where none
# listens. So no lookup leads out; it fails after a second.
NO_RESOLVER = "127.0.0.1"
SOON = ["timeout:1", "attempts:1"]

# What ordinary images need to start as root and to continue as another user: to make files that
# user's, to become it, and to listen below port 1024. No raw sockets, devices or other roots. The
# numbers are those of linux/capability.h.
CAPABILITIES = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "NET_BIND_SERVICE": 10,
}


@dataclass(frozen=True, slots=True)
class Mount:
    """A file system in memory, which counts as memory of whoever writes to it.

    Attributes:
        target: Its path in the container.
        volume: The engine's volume behind it; None for one that only this container has.
        size: Bytes; a volume's own size holds otherwise.
        read_only: Whether it can only be read.
    """

    target: str
    volume: str | None = None
    size: int = 64 * 2**20
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Joined:
    """How a container joins an episode's others.

    Attributes:
        network: The engine's network; nothing is reached from it but the others in it.
        address: Its address there.
        hosts: The names and addresses of the others there.
        hostname: Its own host name.
        mounts: Volumes that it shares, and file systems of its own.
        read_only: Whether its root is, with nothing else in place of its working directory.
        shm: Bytes in ``/dev/shm``; None for the default.
        capabilities: What code with uid 0 has, of :data:`CAPABILITIES`. It can then stop the
            supervisor, so it must be none where a model's code runs.
    """

    network: str
    address: str
    hosts: tuple[tuple[str, str], ...] = ()
    hostname: str = "sandbox"
    mounts: tuple[Mount, ...] = ()
    read_only: bool = False
    shm: int | None = None
    capabilities: tuple[str, ...] = ()

    def apply(self, settings: dict[str, Any]) -> None:
        """Change the arguments of the SDK's ``create_container`` so that the container joins."""
        settings["hostname"] = self.hostname
        settings["network_disabled"] = False
        endpoint = {"IPAMConfig": {"IPv4Address": self.address}}
        settings["networking_config"] = {"EndpointsConfig": {self.network: endpoint}}
        host: dict[str, Any] = settings["host_config"]
        host["NetworkMode"] = self.network
        host["ReadonlyRootfs"] |= self.read_only
        host["Dns"], host["DnsOptions"] = [NO_RESOLVER], SOON
        host["ExtraHosts"] = [f"{name}:{address}" for name, address in self.hosts]
        host["CapAdd"] = sorted({*host["CapAdd"], *self.capabilities})
        bits = sum(1 << CAPABILITIES[name] for name in self.capabilities)
        settings["entrypoint"] += ["--capabilities", str(bits)]
        shared = [_shared(mount) for mount in self.mounts if mount.volume is not None]
        host["Mounts"] = [*host.get("Mounts", []), *shared]
        host["Tmpfs"] |= {
            mount.target: _own(mount) for mount in self.mounts if mount.volume is None
        }
        if self.shm is not None:
            host["Tmpfs"]["/dev/shm"] = _own(Mount("/dev/shm", size=self.shm))


def _shared(mount: Mount) -> dict[str, Any]:
    return {
        "Type": "volume",
        "Source": mount.volume,
        "Target": mount.target,
        "ReadOnly": mount.read_only,
        # The engine would fill it from the image, and have lost that before the start.
        "VolumeOptions": {"NoCopy": True},
    }


def _own(mount: Mount) -> str:
    mode = "ro" if mount.read_only else "rw"
    return f"{mode},exec,nosuid,nodev,size={mount.size},mode=1777"
