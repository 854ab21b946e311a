"""Which traces are learned from, and what is said of the others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import vf
from tests.inference.endpoint.rollout_talk import Texts, opened, say, token_model
from vf.inference.rendering.renderer import Renderer
from vf.runtime.errors import ConfigError
from vf.traces.export.write import export_traces
from vf.traces.trace import Failure, Score, StopReason, Trace, Turn
from vf.trainer.sft.render import render
from vf.trainer.sft.select import IGNORED, Sequenced, select
from vf.trainer.sft.settings import SftConfig

MakeConfig = Callable[..., SftConfig]


def write(path: Path, traces: list[Trace]) -> dict[str, list[str]]:
    path.unlink(missing_ok=True)
    with vf.TraceStore(path) as store:
        for trace in traces:
            store.append(trace)
    return {"traces": [str(path)]}


def with_tokens(renderer: Renderer, trace: Trace) -> Trace:
    """The trace as a model that samples tokens would have left it."""
    return replace(trace, branches=render(renderer, trace))


def scored(trace: Trace, reward: float | None, **fields: object) -> Trace:
    return replace(trace, score=Score(reward, reward), **fields)  # type: ignore[arg-type]


def test_recorded_tokens_are_learned_from_as_they_are(
    make_config: MakeConfig, renderer: Renderer, solved: list[Trace], tmp_path: Path
) -> None:
    """Also where rendering would give others: promise 1."""
    sampled = [with_tokens(renderer, trace) for trace in solved[:6]]
    branch = sampled[0].branches[0]
    start = len(branch) - branch.loss_mask[::-1].index(0)  # of the last answer
    odd = branch.token_ids[start : start + 1]
    spelled = renderer.tokenizer.convert_tokens_to_ids(list(renderer.decode(odd)))
    assert len(spelled) > 1
    branch.token_ids[start : start + 1] = spelled
    extra = len(spelled) - len(odd)
    branch.loss_mask += [1] * extra
    branch.logprobs += [0.0] * extra
    branch.turn_index += [branch.turn_index[-1]] * extra
    branch.weight_version += [0] * extra
    data = {**write(tmp_path / "sampled.jsonl", sampled), "held_out": 0}
    found = select(make_config(data=data), renderer)
    assert (found.recorded, dict(found.rendered)) == (6, {})
    for sequence, trace in zip(found.train, sampled, strict=True):
        [branch] = trace.branches
        assert list(sequence.input_ids) == branch.token_ids
        pairs = zip(branch.token_ids, branch.loss_mask, strict=True)
        assert list(sequence.labels) == [t if mask else IGNORED for t, mask in pairs]


def test_a_trace_whose_tokens_are_damaged_is_rendered_again(
    make_config: MakeConfig, renderer: Renderer, solved: list[Trace], tmp_path: Path
) -> None:
    damaged = [with_tokens(renderer, trace) for trace in solved[:3]]
    damaged[0].branches[0].token_ids[0] = -1
    damaged[1].branches[0].loss_mask.pop()
    damaged[2].branches[0].turn_index.pop()
    data = {**write(tmp_path / "damaged.jsonl", damaged), "held_out": 0}
    found = select(make_config(data=data), renderer)
    assert found.recorded == 0
    assert found.rendered == {"with tokens of another tokenizer": 3}


def test_a_forked_trace_gives_each_of_its_branches(
    make_config: MakeConfig, renderer: Renderer, solved: list[Trace], tmp_path: Path
) -> None:
    trace = with_tokens(renderer, solved[0])
    trace.branches *= 2
    data = {**write(tmp_path / "forked.jsonl", [trace]), "held_out": 0}
    found = select(make_config(data=data), renderer)
    assert (found.kept, len(found.train)) == (1, 2)


def talked() -> Trace:
    """The trace of an agent with a helper, that asks its first question's follow-up twice."""
    texts = Texts(["Tea.", "I help.", "Green.", "Black."])

    async def work() -> Trace:
        async with opened(token_model(texts)) as (_, agent, trace):
            main: list[dict[str, str]] = [{"role": "user", "content": "What to drink?"}]
            await say(agent, main)
            await say(agent, [{"role": "user", "content": "Help."}])
            main.append({"role": "user", "content": "Which?"})
            for _ in range(2):
                await say(agent, [*main])
            trace.score, trace.stop_reason = Score(1.0, 1.0), StopReason.TERMINATED
        return trace

    return asyncio.run(work())


@pytest.mark.parametrize("tokens", ["auto", "rendered"])
def test_each_conversation_of_an_agent_is_a_sequence_and_each_answer_learned_once(
    make_config: MakeConfig, renderer: Renderer, tmp_path: Path, tokens: str
) -> None:
    trace = talked()
    data = {**write(tmp_path / "agent.jsonl", [trace]), "held_out": 0, "tokens": tokens}
    found = select(make_config(data=data), renderer)
    assert found.recorded == (tokens == "auto")
    learned = [renderer.decode([i for i in each.labels if i != IGNORED]) for each in found.train]
    assert [each.replace("<|im_end|>", "|") for each in learned] == (
        ["Tea.|Green.|", "I help.|", "Black.|"]
    )
    first, _, again = found.train
    prompt = list(again.labels).index(next(i for i in again.labels if i != IGNORED))
    assert again.input_ids[:prompt] == first.input_ids[:prompt]
    assert "Tea." in renderer.decode(list(again.input_ids[:prompt]))


def test_what_is_left_out_is_counted_by_why(
    make_config: MakeConfig, renderer: Renderer, solved: list[Trace], tmp_path: Path
) -> None:
    good = solved[0]
    bad = [
        replace(solved[1], error=Failure("tool", "E", "m", ""), stop_reason=StopReason.ERROR),
        scored(solved[2], None),
        scored(solved[3], 0.5),
        replace(solved[4], stop_reason=StopReason.MAX_TURNS),
        replace(solved[5], turns=[Turn(1, 1, "length", 0.1)]),
        replace(solved[6], messages=solved[6].messages[:2]),
        replace(good, id="again"),
    ]
    data = write(tmp_path / "bad.jsonl", [good, *bad])
    with (tmp_path / "bad.jsonl").open("a") as file:
        file.write("junk\n")
    found = select(make_config(data=data), renderer)
    assert (found.read, found.kept) == (8, 1)
    assert found.dropped == {
        "failed with an error": 1,
        "have no reward": 1,
        "have a reward below min_reward = 1": 1,
        "were ended by a limit (include_truncated = true keeps them)": 1,
        "have an answer that was cut off (include_truncated = true keeps them)": 1,
        "have no answer": 1,
        "say the same as another": 1,
        f"lines that hold no trace; the first is {tmp_path / 'bad.jsonl'}, line 9: not JSON": 1,
    }
    kept = {"min_reward": 0.5, "include_truncated": True, "deduplicate": False}
    assert select(make_config(data={**data, **kept}), renderer).kept == 5


def test_the_best_of_each_task_and_of_all(
    make_config: MakeConfig, renderer: Renderer, solved: list[Trace], tmp_path: Path
) -> None:
    rewards = [0.2, 0.9, 0.4, 0.9]
    traces = [
        scored(replace(trace, task=vf.Task(f"t{index % 3}", "p")), rewards[index // 3])
        for index, trace in enumerate(solved[:12])
    ]
    data = {**write(tmp_path / "many.jsonl", traces), "min_reward": 0, "held_out": 0}
    found = select(make_config(data={**data, "top_per_task": 2}), renderer)
    assert [each.reward for each in found.train] == [0.9] * 6
    assert found.dropped == {"are beyond top_per_task = 2": 6}
    found = select(make_config(data={**data, "max_samples": 7}), renderer)
    assert sorted(each.reward or 0 for each in found.train) == [0.4, *[0.9] * 6]
    found = select(make_config(data={**data, "top_per_task": 1, "max_samples": 2}), renderer)
    assert len(found.train) == 2


def test_whole_tasks_are_held_out(
    make_config: MakeConfig, renderer: Renderer, solved: list[Trace], tmp_path: Path
) -> None:
    traces = [
        replace(trace, task=vf.Task(f"t{index % 6}", "p")) for index, trace in enumerate(solved)
    ]
    data = {**write(tmp_path / "tasks.jsonl", traces), "held_out": 0.34}
    found = select(make_config(data=data), renderer)
    away = {each.task for each in found.held_out}
    assert len(away) == 2
    assert away.isdisjoint({each.task for each in found.train})
    assert len(found.train) + len(found.held_out) == len(solved)
    again = select(make_config(data=data), renderer)
    assert {each.task for each in again.held_out} == away
    other = (select(make_config(data=data, seed=seed), renderer) for seed in range(1, 6))
    assert any({each.task for each in found.held_out} != away for found in other)


def test_traces_without_tokens_and_of_another_tokenizer_are_rendered_and_told(
    make_config: MakeConfig, renderer: Renderer, solved: list[Trace], tmp_path: Path
) -> None:
    sampled = [with_tokens(renderer, trace) for trace in solved[:9]]
    for trace in sampled[3:5]:
        trace.branches[0].token_ids = [(i + 7) % 500 for i in trace.branches[0].token_ids]
    data = write(tmp_path / "mixed.jsonl", sampled[:5] + solved[5:9])
    found = select(make_config(data=data), renderer)
    assert found.recorded == 3
    assert found.rendered == {"without tokens": 4, "with tokens of another tokenizer": 2}
    said = dict(found.describe())["tokens"]
    assert "3 traces as sampled; 6 rendered again" in said
    only = select(make_config(data={**data, "tokens": "recorded"}), renderer)
    assert only.kept == 3
    assert only.dropped["without tokens (tokens = 'recorded')"] == 4
    anew = select(make_config(data={**data, "tokens": "rendered"}), renderer)
    assert anew.recorded == 0
    as_text = {tuple(each.input_ids) for each in (*anew.train, *anew.held_out)}
    assert as_text == {tuple(render(renderer, trace)[0].token_ids) for trace in solved[:9]}


def test_chat_lines_and_parquet_give_the_same_sequences(
    make_config: MakeConfig, renderer: Renderer, solved: list[Trace], tmp_path: Path
) -> None:
    def sequences(path: Path) -> list[tuple[list[int], list[int]]]:
        found = select(make_config(data={"traces": [str(path)], "held_out": 0}), renderer)
        return [(list(each.input_ids), list(each.labels)) for each in found.train]

    traces = tmp_path / "traces.jsonl"
    write(traces, solved[:6])
    for name in ("chat.jsonl", "traces.parquet"):
        export_traces(solved[:6], tmp_path / name)
        assert sequences(tmp_path / name) == sequences(traces)


def test_other_programs_conversations_need_no_reward(
    make_config: MakeConfig, renderer: Renderer, tmp_path: Path
) -> None:
    file = tmp_path / "chat.jsonl"
    talk = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]
    file.write_text(json.dumps({"messages": talk}) + "\n")
    found = select(make_config(data={"traces": [str(file)]}), renderer)
    assert found.kept == 1


def test_long_sequences(
    make_config: MakeConfig, renderer: Renderer, solved: list[Trace], tmp_path: Path
) -> None:
    data = {**write(tmp_path / "long.jsonl", solved[:4]), "held_out": 0}
    sizes = [len(render(renderer, trace)[0]) for trace in solved[:4]]
    limit = min(sizes) - 1

    def sequences(how: str, limit: int) -> list[Sequenced]:
        config = make_config(data=data, max_seq_len=limit, long_sequences=how)
        return select(config, renderer).train

    assert [len(each.labels) for each in sequences("truncate", limit)] == [limit] * 4
    with pytest.raises(ConfigError, match="long_sequences = 'refuse'; raise max_seq_len"):
        sequences("refuse", limit)
    with pytest.raises(ConfigError, match="4 sequences are longer than max_seq_len"):
        sequences("drop", limit)


def test_chat_lines_that_say_they_have_no_reward_are_not_taken_to_be_good(
    make_config: MakeConfig, renderer: Renderer, solved: list[Trace], tmp_path: Path
) -> None:
    failed = replace(solved[0], score=None, error=Failure("tool", "E", "m", ""))
    file = tmp_path / "all.jsonl"
    export_traces([failed, scored(solved[1], None), solved[2]], file)
    messages = [[message.to_openai() for message in trace.messages] for trace in solved[3:6]]
    lines = [{"messages": each} for each in messages]
    for line, reward in zip(lines[:2], (-1.0, 3), strict=True):
        line["reward"] = reward  # type: ignore[assignment]
    with file.open("a") as end:
        end.writelines(json.dumps(line) + "\n" for line in lines)
    found = select(make_config(data={"traces": [str(file)], "held_out": 0}), renderer)
    assert (found.read, found.kept, found.dropped) == (6, 2, {"have no reward": 4})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"traces": ["nowhere.jsonl"]}, "there is no nowhere.jsonl"),
        ({"min_reward": 1, "tokens": "recorded"}, "48 without tokens"),
    ],
)
def test_nothing_to_learn_from(
    make_config: MakeConfig, renderer: Renderer, data: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        select(make_config(data=data), renderer)


def test_the_best_reward_is_named_where_it_is_too_low(
    make_config: MakeConfig, renderer: Renderer, solved: list[Trace], tmp_path: Path
) -> None:
    data = write(tmp_path / "low.jsonl", [scored(trace, 0.6) for trace in solved[:3]])
    with pytest.raises(ConfigError, match=r"highest reward is 0.6; lower data.min_reward"):
        select(make_config(data=data), renderer)


def test_held_out_evaluations_of_a_run_are_read_only_where_they_are_named(
    make_config: MakeConfig, renderer: Renderer, solved: list[Trace], tmp_path: Path
) -> None:
    folder = tmp_path / "run" / "traces"
    write(folder / "step-000001.jsonl", solved[:3])
    write(folder / "eval-000000.jsonl", solved[3:8])
    found = select(make_config(data={"traces": [str(tmp_path / "run")]}), renderer)
    assert (found.read, found.files, found.evaluations) == (3, 1, 1)
    assert ("dropped", "1 files of held-out evaluations; name them to read them") in (
        found.describe()
    )
    named = {"traces": [str(tmp_path / "run"), str(folder / "eval-000000.jsonl")]}
    assert select(make_config(data=named), renderer).read == 8
