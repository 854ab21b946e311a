"""A trial of a sandbox: does it run code, and do the protections hold that no engine reports?"""

from __future__ import annotations

import json
from typing import Any

from vf.sandbox.container.address import Address
from vf.sandbox.container.hardening import Profile
from vf.sandbox.container.opening import open_container

PROBE = """
import ctypes, json, socket
libc = ctypes.CDLL(None, use_errno=True)
def refused(call):
    try: call()
    except OSError: return True
    return False
def ring():
    if libc.syscall(425, 1, ctypes.create_string_buffer(256)) < 0: raise OSError
def lower():
    with open("/proc/self/oom_score_adj", "w") as file: file.write("900")
print(json.dumps({
    "io_uring is closed": refused(ring),
    "AF_VSOCK is closed": refused(lambda: socket.socket(40, socket.SOCK_STREAM)),
    "programs die before the supervisor when memory runs out": refused(lower),
}))
"""
WHY_NOT = {
    "io_uring is closed": "the engine's list of system calls allows it",
    "AF_VSOCK is closed": "the engine's list of system calls allows it",
    "programs die before the supervisor when memory runs out": (
        "the kernel has no Landlock (it needs 5.19 or newer, with landlock among its security "
        "modules); code that takes its own sandbox down is still scored"
    ),
}


async def try_out(profile: Profile, address: Address | None = None) -> tuple[str, dict[str, bool]]:
    """Open a sandbox and run code in it.

    Returns:
        The printed result of 6 * 7, and for each protection in ``WHY_NOT`` whether it holds.

    Raises:
        ConfigError: If no sandbox can be made.
        SandboxError: If the engine failed.
    """
    async with open_container(profile, address) as sandbox:
        product = (await sandbox.python("6 * 7")).stdout.strip()
        outcomes: dict[str, Any] = json.loads((await sandbox.python(PROBE)).stdout or "{}")
        return product, {name: bool(outcomes.get(name)) for name in WHY_NOT}
