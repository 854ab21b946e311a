"""The simulated user of the docs, played by a real second model: its words carry no loss."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import vf
from tests.docs.blocks import ROOT, blocks
from tests.inference.tiny_serving import load_model, running_engine, running_server
from vf.environments import registry
from vf.inference.completions import TokenClient
from vf.inference.model_files import resolve_model
from vf.inference.models.token_model import TokenModel
from vf.inference.rendering.renderer import Renderer


def test_only_what_the_policy_sampled_carries_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    page = blocks(ROOT / "docs" / "simulated-users.md")
    scope: dict[str, Any] = {}
    exec(next(block.text for block in page if block.kind == "python"), scope)
    renderer = Renderer.from_pretrained(resolve_model("tiny"))

    async def main(url: str) -> vf.Trace:
        user = vf.ChatModel("tiny", base_url=url, max_retries=0)
        client = TokenClient.to(url, "tiny", max_retries=0)
        model = TokenModel(client, renderer, max_seq_len=1024)
        environment = scope["Booking"](user=user)
        task = next(iter(environment.tasks("train")))
        try:
            return await vf.rollout(environment, task, model, sampling=vf.Sampling(16))
        finally:
            await client.close()
            await user.close()

    with (
        running_engine(load_model(), max_seq_len=1024) as engine,
        running_server(engine, renderer) as url,
    ):
        trace = asyncio.run(main(url))
    assert trace.error is None
    assert trace.info["user_tokens"] > 0
    [branch] = trace.branches
    assert sum(branch.loss_mask) == trace.completion_tokens
    unlearned = [t for t, m in zip(branch.token_ids, branch.loss_mask, strict=True) if not m]
    said = [m.content for m in trace.messages[trace.prompt_messages :] if m.role == "user"]
    assert len(trace.turns) > 1  # the user's first words were read, then
    assert said[0] in renderer.decode(unlearned)
