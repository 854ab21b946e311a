"""Search, open, answer, in token ids: what was retrieved is context, and never in the loss."""

from __future__ import annotations

import asyncio
from pathlib import Path

import vf
from tests.inference.chat_templates import tokenizer
from tests.tools.search.corpus import Quiz, make_index
from vf.inference.models.token_model import TokenModel
from vf.inference.rendering.renderer import Renderer
from vf.inference.token_client import TokenClient
from vf.testing import FakeServer, completion

SAID = [
    '<tool_call>\n{"name": "search", "arguments": {"query": "capital of Norway"}}\n</tool_call>',
    '<tool_call>\n{"name": "open", "arguments": {"doc_id": "oslo"}}\n</tool_call>',
    "Oslo.",
]


def test_only_what_the_model_said_carries_loss(tmp_path: Path) -> None:
    renderer = Renderer(tokenizer())
    index = make_index(tmp_path)
    sampled = [[*renderer.tokenizer.encode(text), renderer.stop_token_ids[0]] for text in SAID]

    async def run() -> vf.Trace:
        async with FakeServer([completion(ids) for ids in sampled]) as server:
            client = TokenClient.to(server.base_url, "tiny", max_retries=0)
            model = TokenModel(client, renderer, max_seq_len=100_000)
            try:
                return await vf.rollout(Quiz(index), vf.Task("t", "Norway's capital?"), model)
            finally:
                await client.close()

    trace = asyncio.run(run())
    assert trace.error is None
    assert trace.reply == "Oslo."
    assert trace.info["search"]["found"][0][0] == "oslo"
    assert trace.info["search"]["opened"] == ["oslo"]
    [branch] = trace.branches
    masked = list(zip(branch.token_ids, branch.loss_mask, strict=True))
    assert [token for token, mask in masked if mask] == [token for ids in sampled for token in ids]
    context = renderer.tokenizer.decode([token for token, mask in masked if not mask])
    assert context.count("It lies on a fjord.") == 2
    assert '<result id="oslo"' in context
    assert '<document id="oslo"' in context
