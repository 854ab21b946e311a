"""Verification: the tests are put in and run, and their results are read.

The tests and ``/logs/verifier`` are made then, by user 0, after whatever lay there was removed.
"""

from __future__ import annotations

from collections.abc import Mapping

from vf.bridges.harbor import container
from vf.bridges.harbor.container import as_root, failure_of
from vf.bridges.harbor.model import VERIFIER, Part
from vf.bridges.harbor.verdict import Verdict, read_pytest, read_rewards
from vf.sandbox.contract import ExecResult, Sandbox

MAX_REWARD_BYTES = 2**20  # bytes of a reward file
MAX_OUTPUT = 2**20  # bytes of what tests print


async def run_tests(
    sandbox: Sandbox, part: Part, env: Mapping[str, str], *, key: str, end: bool
) -> tuple[Verdict, ExecResult | None]:
    """Put the tests in, run them, and read what they say.

    Args:
        sandbox: Container of the tests.
        part: Part of the task that is verified.
        env: Environment variables of the tests.
        key: Key of the reward where there are several.
        end: Whether to end what the tests have started before their verdict is read.

    Raises:
        Unverifiable: If the container does not let the tests run.
        SandboxError: If the container is lost.
    """
    await as_root(sandbox, f"rm -rf {VERIFIER} && mkdir -p {VERIFIER}")
    if part.verifier.user not in (None, "root", container.ROOT):
        await as_root(sandbox, f"chmod 777 {VERIFIER}")
    await container.copy_in(sandbox, part.tests)
    result = await sandbox.exec(
        container.command(part.tests),
        env=env,
        user=part.verifier.user or container.ROOT,
        timeout=part.verifier.seconds or 600.0,
        max_output=MAX_OUTPUT,
    )
    if result.ended or result.timed_out:
        return Verdict(problem=f"the tests did not end: {failure_of(result)}"), result
    if part.verdict == "pytest":
        return read_pytest(result.stdout), result
    if end:
        await container.end_programs(sandbox)
    text = await container.fetch(sandbox, f"{VERIFIER}/reward.txt", MAX_REWARD_BYTES)
    table = await container.fetch(sandbox, f"{VERIFIER}/reward.json", MAX_REWARD_BYTES)
    return read_rewards(text, table, key), result
