"""One of the trainer's processes, on its own machine.

`python -m vf.trainer.processes.rank COUNT RANK HOST PORT ACCELERATE_CONFIG ARGUMENTS ...`, where an
empty ACCELERATE_CONFIG is none, and the arguments are those of `vf-rl`. HOST and PORT are where the
processes meet. ``VF_HOST`` holds this machine's own address.
"""

from __future__ import annotations

import ipaddress
import os
import sys

from vf.cluster.ray_node import HERE_ONLY
from vf.trainer.processes.launch import OWN_HOST, Meeting, launch

INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def interface_of(address: str) -> str | None:
    """Return which network interface of this machine has an address; None if none is known to."""
    import psutil

    target = ipaddress.ip_address(address)
    for name, addresses in psutil.net_if_addrs().items():
        for interface_address in addresses:
            try:
                own = ipaddress.ip_address(interface_address.address.partition("%")[0])
            except ValueError:  # a hardware address
                continue
            # All of 127.0.0.0/8 is the loopback interface's, which lists one address.
            if own == target or (own.is_loopback and target.is_loopback):
                return name
    return None


def name_interface() -> None:
    """Let gloo and NCCL use the interface of ``VF_HOST``, unless variables name another.

    Otherwise gloo takes what the machine's name resolves to, which is often the loopback interface,
    and NCCL the first that is up, which may be a container's bridge. What is set here stays here:
    the machines on which this process places servers and workers may name theirs otherwise.
    """
    if (interface := interface_of(os.environ[OWN_HOST])) is not None:
        names = [name for name in INTERFACES if name not in os.environ]
        os.environ.update(dict.fromkeys(names, interface))
        os.environ[HERE_ONLY] = " ".join([*os.environ.get(HERE_ONLY, "").split(), *names])


def main() -> int:
    """Start the process, wait for its end and return its exit code."""
    count, rank, host, port, accelerate_config, *argv = sys.argv[1:]
    name_interface()
    meeting = Meeting(int(rank), host, int(port))
    return launch(int(count), argv, accelerate_config or None, meeting)


if __name__ == "__main__":
    sys.exit(main())
