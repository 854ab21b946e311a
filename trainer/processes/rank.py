"""One of the trainer's processes, on a machine of its own.

`python -m vf.trainer.processes.rank COUNT RANK HOST PORT ACCELERATE_CONFIG ARGUMENTS ...`, where an
empty ACCELERATE_CONFIG is none, and the arguments are those of `vf-rl`. HOST and PORT are where the
processes meet. ``VF_HOST`` holds this machine's own address.
"""

from __future__ import annotations

import ipaddress
import os
import sys

from vf.trainer.processes.launch import OWN_HOST, Meeting, launch


def interface_of(address: str) -> str | None:
    """Return which network interface of this machine has an address; None if none is known to."""
    import psutil

    wanted = ipaddress.ip_address(address)
    for name, found in psutil.net_if_addrs().items():
        for each in found:
            try:
                own = ipaddress.ip_address(each.address.partition("%")[0])
            except ValueError:  # a hardware address
                continue
            # All of 127.0.0.0/8 is the loopback interface's, which lists one address.
            if own == wanted or (own.is_loopback and wanted.is_loopback):
                return name
    return None


def main() -> int:
    """Start the process, wait for its end and return its exit code."""
    count, rank, host, port, accelerate_config, *argv = sys.argv[1:]
    # Otherwise gloo takes what the machine's name resolves to, which is often the loopback
    # interface, and NCCL the first that is up, which may be a container's bridge.
    if (interface := interface_of(os.environ[OWN_HOST])) is not None:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, interface)
    meeting = Meeting(int(rank), host, int(port))
    return launch(int(count), argv, accelerate_config or None, meeting)


if __name__ == "__main__":
    sys.exit(main())
