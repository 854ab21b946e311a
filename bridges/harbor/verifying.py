"""Verification: the tests are put in and run, and their results are read.

The tests and ``/logs/verifier`` are made then, by user 0, after whatever lay there was removed.
"""

from __future__ import annotations

from collections.abc import Mapping

from vf.bridges.harbor import container
from vf.bridges.harbor.container import as_root, said
from vf.bridges.harbor.model import VERIFIER, Part
from vf.bridges.harbor.verdict import Verdict, read_pytest, read_rewards
from vf.sandbox.contract import ExecResult, Sandbox

MOST_REWARD = 2**20  # bytes of a reward file
MOST_OUTPUT = 2**20  # bytes of what tests print


async def run_tests(
    sandbox: Sandbox, part: Part, env: Mapping[str, str], *, key: str, end: bool
) -> tuple[Verdict, ExecResult | None]:
    """Put the tests in, run them, and read what they say.

    Args:
        sandbox: Where.
        part: What they belong to.
        env: Their variables.
        key: Which of several keys is the reward.
        end: Whether to end what they have started before their verdict is read.

    Raises:
        Spoilt: The container does not let them run.
        SandboxError: It is lost.
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
        max_output=MOST_OUTPUT,
    )
    if result.ended or result.timed_out:
        return Verdict(problem=f"the tests did not end: {said(result)}"), result
    if part.verdict == "pytest":
        return read_pytest(result.stdout), result
    if end:
        await container.end_programs(sandbox)
    text = await container.fetch(sandbox, f"{VERIFIER}/reward.txt", MOST_REWARD)
    table = await container.fetch(sandbox, f"{VERIFIER}/reward.json", MOST_REWARD)
    return read_rewards(text, table, key), result
