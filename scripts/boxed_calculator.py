"""The calculator's tasks, worked out in a sandbox of each episode's own."""

from __future__ import annotations

from typing import Any

import vf
from vf.environments.bundled.calculator import Calculator, Operation
from vf.sandbox.contract import ExecResult, Sandbox
from vf.sandbox.hosting.source import sandbox_source
from vf.tools.episode_sandbox import EpisodeSandbox

MIB = 2**20
SMALL = {"memory": 192 * MIB, "workspace": 32 * MIB, "tmp": 16 * MIB, "lifetime": 600}
WORK = """
import sys
with open("tape", "a+") as tape:
    print(*sys.argv[1:], file=tape)
    tape.seek(0)
    print(len(tape.readlines()))
a, b = int(sys.argv[1]), int(sys.argv[3])
print({"+": a + b, "-": a - b, "*": a * b}[sys.argv[2]])
"""


class BoxedCalculator(Calculator):
    """Nested arithmetic; a file in the sandbox holds the operations of the episode so far.

    Args:
        hosts: The engines that sandboxes are made on.
        **arguments: The calculator's.
    """

    def __init__(self, hosts: list[str], **arguments: Any) -> None:
        super().__init__(**arguments)
        self.source = sandbox_source({"hosts": hosts, "max_containers": 16, **SMALL})

    @property
    def services(self) -> list[Any]:
        """The source of sandboxes, too."""
        return [*super().services, self.source]

    def reset(self, task: vf.Task) -> Any:
        """Begin with an empty tape."""
        self.calls = 0
        return super().reset(task)

    @vf.tool
    async def calculate(self, op: Operation, a: int, b: int) -> int:  # type: ignore[override]
        """Apply one operation to two integers.

        Args:
            op: The operation.
            a: Left operand.
            b: Right operand.
        """

        async def work(sandbox: Sandbox) -> ExecResult:
            self.calls += 1
            return await sandbox.exec(["python3", "-c", WORK, str(a), op, str(b)])

        result = await EpisodeSandbox.of(self, self.source).use(work)
        assert result.ok, result
        lines, value = map(int, result.stdout.split())
        assert lines == self.calls, f"the sandbox saw {lines} of {self.calls} operations"
        return value
