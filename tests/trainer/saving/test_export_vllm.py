"""A real vLLM, started by the command that `vf-rl export` prints, serves what was trained."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.inference.vllm.vllm_cpu import serving
from tests.trainer.saving.test_export import TIED, MakeTrainer, gap, trained
from vf.inference.model import Sampling
from vf.inference.serving import Serving
from vf.inference.token_client import TokenClient
from vf.trainer.commands.main import main

pytestmark = pytest.mark.slow


@pytest.mark.timeout(900)
@pytest.mark.parametrize("words", [[], ["--adapter"]], ids=["merged", "adapter"])
def test_vllm_serves_by_the_printed_command_what_was_trained(
    make_trainer: MakeTrainer,
    vllm_python: str,
    tmp_path: Path,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    trainer = trained(make_trainer, **TIED, lora_rank=12)
    folder = tmp_path / "exported"
    capsys.readouterr()
    assert main(["export", str(trainer.folder.path), "-o", str(folder), *words]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "vllm serve" in line]
    command = line[line.index("vllm serve") :]

    async def sample(url: str) -> tuple[list[int], list[float]]:
        serving = Serving("trained" if words else str(folder))
        client = TokenClient.to(url, serving)
        prompt, sampling = trainer.plan.probe_ids, Sampling(max_tokens=16, temperature=1.0, seed=0)
        try:
            found = await client.complete(prompt, sampling, trainer.plan.renderer.stop_token_ids)
        finally:
            await client.close()
        return found.token_ids, found.logprobs

    with serving(command, vllm_python, tmp_path / "server.log") as url:
        token_ids, sampled = asyncio.run(sample(url))
    assert gap(sampled, trainer.policy.logprobs(trainer.plan.probe_ids, token_ids)) < 1e-4
