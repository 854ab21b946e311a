"""The run's own rollouts ask the embedded engine directly, others over HTTP: they get the same."""

from __future__ import annotations

import asyncio

import pytest

from tests.inference.tiny_serving import load_model
from vf.inference.embedded.embedded_server import EmbeddedServer
from vf.inference.model import Sampling
from vf.inference.model_files import resolve_model
from vf.inference.rendering.renderer import Renderer
from vf.inference.settings import EmbeddedSettings
from vf.inference.token_client import TokenClient
from vf.runtime.errors import EngineError

PROMPT = [1, 40, 41, 42]


def test_the_own_sampler_gives_what_http_gives_and_fails_as_the_engine_does() -> None:
    renderer = Renderer.from_pretrained(resolve_model("tiny"))
    server = EmbeddedServer(EmbeddedSettings(), load_model(), renderer, "tiny", max_seq_len=128)
    server.start(print)

    async def main() -> None:
        own = server.sampler(30.0)
        remote = TokenClient.to(server.base_url, "tiny", timeout=60.0)
        sampling = Sampling(20, temperature=5.0, seed=3)
        try:
            mine = await own.complete(PROMPT, sampling, [-1])
            theirs = await remote.complete(PROMPT, sampling, [-1])
            assert mine.token_ids == theirs.token_ids
            assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)
            assert mine.supports == theirs.supports == []
            filtered = sampling.with_(top_p=0.3)
            mine, theirs = [await each.complete(PROMPT, filtered, [-1]) for each in (own, remote)]
            assert mine.supports == theirs.supports
            assert all(0 < len(kept) < 512 for kept in mine.supports)
            assert all(t in kept for t, kept in zip(mine.token_ids, mine.supports, strict=True))
            assert mine.finish_reason == theirs.finish_reason == "length"
            with pytest.raises(EngineError, match="the context holds 128"):
                await own.complete(PROMPT, sampling.with_(max_tokens=125), [-1])
            with pytest.raises(EngineError, match=r"token ids in \[0, 512\)"):
                await own.complete([512], sampling, [-1])
        finally:
            await own.close()
            await remote.close()

    try:
        asyncio.run(main())
    finally:
        server.stop()
