"""Publishing, pausing, cancelling and dying: what happens to requests under way."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
import torch

from tests.inference.tiny_serving import (
    counted_passes,
    generate_all,
    load_model,
    logits,
    plain_logprobs,
    running_engine,
)
from tests.waiting import until
from vf.inference.completions import Completion
from vf.inference.embedded import scheduler
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.model import Sampling
from vf.runtime.errors import EngineError

PROMPT = [1, 40, 41, 42]
NEVER = [-1]  # no token has this id, so nothing stops an answer early
LONG = Sampling(400, seed=0)


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with running_engine(load_model(), max_requests=2) as running:
        yield running


async def read(engine: EmbeddedEngine, seen: list[Completion], sampling: Sampling = LONG) -> None:
    async for completion in engine.stream(PROMPT, sampling, NEVER):
        seen.append(completion)


def run(main: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(120):
            await main

    asyncio.run(limited())


def test_a_stream_grows_by_one_token_at_a_time(engine: EmbeddedEngine) -> None:
    seen: list[Completion] = []
    run(read(engine, seen, Sampling(6, seed=1)))
    assert [len(completion.token_ids) for completion in seen] == [1, 2, 3, 4, 5, 6]
    assert [completion.finish_reason for completion in seen] == [None] * 5 + ["length"]
    (whole,) = generate_all(engine, [(PROMPT, Sampling(6, seed=1))], NEVER)
    assert seen[-1].token_ids == whole.token_ids


def test_publishing_while_an_answer_grows_gives_it_two_versions(engine: EmbeddedEngine) -> None:
    seen: list[Completion] = []

    async def main() -> None:
        publishing: asyncio.Task[None] | None = None
        async for completion in engine.stream(PROMPT, LONG, NEVER):
            seen.append(completion)
            if len(seen) == 4:
                publishing = asyncio.create_task(asyncio.to_thread(engine.publish, 7))
            if completion.versions.count(7) == 3:
                break
        assert publishing is not None
        await publishing

    engine.publish(6)
    run(main())
    versions = seen[-1].versions
    change = versions.index(7)
    assert versions == [6] * change + [7] * (len(versions) - change)
    assert 3 < change < len(versions)
    assert engine.version == 7


def test_new_weights_are_sampled_from_at_once() -> None:
    with running_engine(load_model()) as engine:
        (before,) = generate_all(engine, [(PROMPT, Sampling(8, seed=3))], NEVER)
        with engine.paused(), torch.no_grad():
            engine.model.get_input_embeddings().weight.mul_(1.5)
        engine.publish(1)
        (after,) = generate_all(engine, [(PROMPT, Sampling(8, seed=3))], NEVER)
        assert after.versions == [1] * 8
        assert after.logprobs == pytest.approx(
            plain_logprobs(engine, PROMPT, after.token_ids), abs=1e-3
        )
        assert abs(before.logprobs[0] - after.logprobs[0]) > 1e-3


@pytest.mark.slow
def test_nothing_is_sampled_while_paused_and_everything_resumes_after(
    engine: EmbeddedEngine,
) -> None:
    seen: list[Completion] = []

    async def main() -> None:
        reading = asyncio.create_task(read(engine, seen))
        await until(lambda: len(seen) > 3)
        with engine.paused(), counted_passes(engine) as passes:
            await asyncio.wait([reading], timeout=0.2)
            assert passes == []
            assert len(seen) < 400
        await reading

    run(main())
    assert len(seen[-1].token_ids) == 400
    (unbroken,) = generate_all(engine, [(PROMPT, LONG)], NEVER)
    assert seen[-1].token_ids == unbroken.token_ids


def test_an_error_inside_a_pause_ends_the_pause(engine: EmbeddedEngine) -> None:
    with pytest.raises(RuntimeError, match="mine"), engine.paused():
        raise RuntimeError("mine")
    assert len(generate_all(engine, [(PROMPT, Sampling(2))], NEVER)) == 1


@pytest.mark.parametrize("streamed", [True, False])
def test_a_cancelled_request_ends_at_once_and_frees_its_place(
    engine: EmbeddedEngine, streamed: bool
) -> None:
    rounds = 8  # at many moments, and more than there are places

    async def main(passes: list[int]) -> None:
        for k in range(rounds):
            before = len(passes)
            tasks: list[asyncio.Task[Any]] = [
                asyncio.create_task(
                    read(engine, []) if streamed else engine.generate(PROMPT, LONG, NEVER)
                )
                for _ in range(2)
            ]
            await until(lambda: len(passes) >= before + k)  # noqa: B023
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert all(task.cancelled() for task in tasks)
        assert len((await engine.generate(PROMPT, Sampling(3), NEVER)).token_ids) == 3

    with counted_passes(engine) as passes:
        run(main(passes))
    assert 3 <= len(passes) < rounds * LONG.max_tokens / 2


def test_a_closed_stream_frees_its_place(engine: EmbeddedEngine) -> None:
    async def main() -> None:
        for _ in range(3):
            stream = engine.stream(PROMPT, LONG, NEVER)
            assert len((await anext(stream)).token_ids) == 1
            await stream.aclose()
        assert len((await engine.generate(PROMPT, Sampling(3), NEVER)).token_ids) == 3

    run(main())


def test_loops_that_end_with_requests_under_way_do_not_kill_the_engine(
    engine: EmbeddedEngine,
) -> None:
    async def abandon() -> asyncio.Task[None]:
        seen: list[Completion] = []
        task = asyncio.create_task(read(engine, seen))
        await until(lambda: seen)
        return task

    for _ in range(5):
        assert asyncio.run(abandon()).cancelled()
    assert len(generate_all(engine, [(PROMPT, Sampling(3))], NEVER)[0].token_ids) == 3


def test_two_loops_can_be_served_at_once(engine: EmbeddedEngine) -> None:
    async def main() -> None:
        def elsewhere(seed: int) -> list[int]:
            (answer,) = generate_all(engine, [(PROMPT, Sampling(30, seed=seed))], NEVER)
            return answer.token_ids

        both = await asyncio.gather(*(asyncio.to_thread(elsewhere, seed) for seed in (1, 1)))
        assert both[0] == both[1]
        assert len(both[0]) == 30

    run(main())


def break_forward(engine: EmbeddedEngine, error: Exception) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    engine.model.get_submodule("model.layers.1.mlp").forward = fail


def test_a_dying_engine_fails_pending_and_later_requests_and_names_the_cause() -> None:
    with running_engine(load_model(), max_requests=2) as engine:

        async def main() -> None:
            pending = [asyncio.create_task(engine.generate(PROMPT, LONG, NEVER)) for _ in range(5)]
            with counted_passes(engine) as passes:
                await until(lambda: passes)
            break_forward(engine, ValueError("a burnt-out layer"))
            failures = await asyncio.gather(*pending, return_exceptions=True)
            assert [type(failure) for failure in failures] == [EngineError] * 5
            assert "a burnt-out layer" in str(failures[0])
            with pytest.raises(EngineError, match="a burnt-out layer"):
                await engine.generate(PROMPT, Sampling(1), NEVER)

        run(main())
        with pytest.raises(EngineError, match="a burnt-out layer") as caught:
            engine.check()
        assert isinstance(caught.value.__cause__, ValueError)
        with pytest.raises(EngineError, match="a burnt-out layer"), engine.paused():
            pass
        with pytest.raises(EngineError, match="a burnt-out layer"):
            engine.publish(1)


HOSTILE = {
    "a temperature whose quotient overflows": Sampling(8, temperature=1e-40),
    "a penalty whose quotient overflows": Sampling(8, repetition_penalty=1e-40),
    "a temperature that is no number": Sampling(8, temperature=float("nan")),
    "more tokens than an int64 counts": Sampling(8, top_k=2**63),
    "no text": Sampling(8, min_p="much"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_a_row_that_cannot_be_sampled_fails_its_own_request_only(
    engine: EmbeddedEngine, hostile: Sampling
) -> None:
    honest = Sampling(40, seed=5)
    (alone,) = generate_all(engine, [(PROMPT, honest)], NEVER)

    async def main() -> None:
        beside, failure = await asyncio.gather(
            engine.generate(PROMPT, honest, NEVER),
            engine.generate(PROMPT, hostile, NEVER),
            return_exceptions=True,
        )
        assert isinstance(beside, Completion)
        assert beside.token_ids == alone.token_ids
        assert isinstance(failure, EngineError)
        assert "no token can be sampled" in str(failure)

    run(main())
    engine.check()
    assert generate_all(engine, [(PROMPT, honest)], NEVER)[0].token_ids == alone.token_ids


def test_a_pass_that_raised_once_fails_its_requests_and_the_engine_continues() -> None:
    with running_engine(load_model()) as engine:
        mlp = engine.model.get_submodule("model.layers.1.mlp")

        def fail_once(*args: Any, **kwargs: Any) -> None:
            mlp.forward = type(mlp).forward.__get__(mlp)
            raise MemoryError("for this pass")

        (before,) = generate_all(engine, [(PROMPT, Sampling(8, seed=3))], NEVER)
        mlp.forward = fail_once
        with pytest.raises(EngineError, match="for this pass"):
            generate_all(engine, [(PROMPT, LONG)], NEVER)
        (after,) = generate_all(engine, [(PROMPT, Sampling(8, seed=3))], NEVER)
        assert after.token_ids == before.token_ids


def test_an_engine_that_dies_while_a_pause_is_asked_for_does_not_hang() -> None:
    with running_engine(load_model()) as engine:
        gate: list[int] = []

        def slowly_fail(*args: Any, **kwargs: Any) -> None:
            gate.append(1)
            time.sleep(0.2)
            raise ValueError("too late")

        engine.model.get_submodule("model.layers.1.mlp").forward = slowly_fail

        async def main() -> None:
            pending = asyncio.create_task(engine.generate(PROMPT, LONG, NEVER))
            await until(lambda: bool(gate))
            with pytest.raises(EngineError):
                await asyncio.to_thread(engine.publish, 1)
            with pytest.raises(EngineError, match="too late"):
                await pending

        run(main())


def test_a_stopped_engine_fails_what_is_under_way_and_says_that_it_is_not_running() -> None:
    engine = EmbeddedEngine(load_model(), max_seq_len=512)
    with pytest.raises(EngineError, match="not running"):
        engine.check()
    engine.start()

    async def main() -> None:
        pending = asyncio.create_task(engine.generate(PROMPT, LONG, NEVER))
        with counted_passes(engine) as passes:
            await until(lambda: passes)
        await asyncio.to_thread(engine.stop)
        with pytest.raises(EngineError):
            await pending
        with pytest.raises(EngineError, match="not running"):
            await engine.generate(PROMPT, LONG, NEVER)

    run(main())
    engine.stop()


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["pass", "raise KeyboardInterrupt"])
def test_a_process_that_forgets_to_stop_its_engine_can_end(ending: str) -> None:
    code = f"""
import asyncio
from tests.inference.tiny_serving import load_model
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.model import Sampling

engine = EmbeddedEngine(load_model(), max_requests=2, max_seq_len=128)
engine.start()
completion = asyncio.run(engine.generate([1, 40, 41], Sampling(4, seed=0), [-1]))
print(len(completion.token_ids), flush=True)
{ending}
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "4\n", done.stderr
    assert (done.returncode == 0) is (ending == "pass")


def test_the_model_is_usable_after_the_engine_has_stopped() -> None:
    model = load_model()
    ids = torch.tensor([PROMPT])
    before = model(ids).logits
    with running_engine(model) as engine:
        assert torch.allclose(logits(engine, PROMPT), before[0], atol=1e-4)
    assert torch.allclose(model(ids).logits, before, atol=1e-4)


def test_an_adapter_is_active_and_its_weights_are_shared() -> None:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    wrapped = get_peft_model(
        load_model(), LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    ).eval()
    request = (PROMPT, Sampling(12, seed=2))
    with running_engine(wrapped.get_base_model()) as engine:
        (before,) = generate_all(engine, [request], NEVER)
        with engine.paused(), torch.no_grad():
            for name, parameter in wrapped.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.3)
        engine.publish(1)
        (after,) = generate_all(engine, [request], NEVER)
        plain = plain_logprobs(engine, PROMPT, after.token_ids, model=wrapped)
        assert after.logprobs == pytest.approx(plain, abs=1e-5)
        with wrapped.disable_adapter():
            without = plain_logprobs(engine, PROMPT, after.token_ids, model=wrapped)
        assert max(abs(a - b) for a, b in zip(plain, without, strict=True)) > 0.01
        assert before.token_ids != after.token_ids or before.logprobs != after.logprobs


def test_a_model_that_cannot_be_served_is_named() -> None:
    engine = EmbeddedEngine(torch.nn.Linear(2, 2), max_seq_len=8)
    with pytest.raises(EngineError, match="cannot be served by the embedded engine"):
        engine.start()


@pytest.mark.parametrize(("small", "expected"), [(scheduler.SMALL, 1), (0.0, 2)])
def test_small_passes_take_one_thread_and_leave_the_trainer_its_own(
    monkeypatch: pytest.MonkeyPatch, small: float, expected: int
) -> None:
    monkeypatch.setattr(scheduler, "SMALL", small)
    before, seen = torch.get_num_threads(), set()
    torch.set_num_threads(2)
    try:
        with running_engine(load_model()) as engine:
            embeddings = engine.model.get_input_embeddings()
            embeddings.register_forward_hook(lambda *_: seen.add(torch.get_num_threads()))
            generate_all(engine, [(PROMPT, Sampling(4, seed=1))], NEVER)
            assert seen == {expected}
            plain_logprobs(engine, PROMPT, [1])
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
