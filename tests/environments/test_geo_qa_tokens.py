"""geo-qa in tokens: what the search tools answer is context, and never carries loss."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.inference.chat_templates import STRIPS_THINKING, tokenizer
from vf.environments.bundled.geo_qa import GeoQA
from vf.inference.models.token_model import TokenModel
from vf.inference.rendering.renderer import Renderer
from vf.inference.token_client import TokenClient
from vf.testing import FakeServer, completion

RENDERERS = {
    "shipped": Renderer(tokenizer()),
    "strips thinking": Renderer(tokenizer(STRIPS_THINKING), stop_token_ids=[0]),
}


def call(name: str, **arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>{body}</tool_call>"


async def play(
    environment: GeoQA, task: vf.Task, renderer: Renderer, turns: list[list[int]]
) -> tuple[vf.Trace, list[list[int]]]:
    """Have a server sample these ids turn by turn; return the trace and the prompts it got."""
    async with FakeServer([completion(ids) for ids in turns]) as server:
        client = TokenClient.to(server.base_url, "tiny", max_retries=0)
        model = TokenModel(client, renderer, max_seq_len=8192)
        try:
            trace = await vf.rollout(environment, task, model)
        finally:
            await client.close()
    return trace, [body["prompt"] for body in server.bodies]


@pytest.mark.parametrize("name", RENDERERS)
def test_search_open_answer_with_the_results_untrained(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    renderer = RENDERERS[name]
    environment = GeoQA(cities=300, min_hops=2, max_hops=2, num_train=30)
    task = next(t for t in environment.tasks("train") if len(t.info["documents"]) == 2)
    texts = []
    for doc_id, title in task.info["documents"].items():
        texts.append(f"<think>\nWhat of {title}?\n</think>\n\n" + call("search", query=title))
        texts.append(call("open", doc_id=doc_id))
    texts.append(f"Answer: {task.answer[0]}")
    turns = [[*renderer.tokenizer.encode(text), renderer.closer_id] for text in texts]

    trace, prompts = asyncio.run(play(environment, task, renderer, turns))

    assert trace.error is None
    assert trace.reward == 1.0
    assert [event.name for event in trace.tool_events] == ["search", "open"] * 2
    assert trace.info["search"]["opened"] == list(task.info["documents"])
    (branch,) = trace.branches
    assert trace.forks == []
    trained = [i for i, m in zip(branch.token_ids, branch.loss_mask, strict=True) if m]
    assert trained == [token for turn in turns for token in turn]
    for (before, after), turn in zip(pairwise(prompts), turns, strict=False):
        assert after[: len(before) + len(turn)] == before + turn
    untrained = renderer.decode(
        [i for i, m in zip(branch.token_ids, branch.loss_mask, strict=True) if not m]
    )
    results = [message.content for message in trace.messages if message.role == "tool"]
    assert len(results) == 4
    for doc_id, text in zip(trace.info["search"]["opened"], results[1::2], strict=True):
        assert f'<document id="{doc_id}"' in text
    assert all(text in untrained for text in results)
    assert not any(text in renderer.decode(trained) for text in results)
    assert vf.Trace.from_json(trace.to_json()) == trace
