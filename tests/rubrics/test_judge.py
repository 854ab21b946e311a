"""The judge: votes, cache, cost, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.rubrics.one_answer import answered
from tests.rubrics.scripted_judge import chat, judge_at, nonce_of, saying, verdicts
from vf.rubrics.judge import Judge
from vf.rubrics.judge_prompt import Criterion
from vf.runtime.errors import ConfigError, RubricError
from vf.testing import FakeServer, Request, Response
from vf.testing.fake_server import Script

CLEAR = Criterion("Is it clear?", {"no": 0.0, "somewhat": 0.4, "yes": 1.0}, name="clear")
RUDE = Criterion("Is it rude?", {"polite": 0.0, "rude": 1.0}, name="rude", weight=3.0)


def judged(
    server: Script, trace: vf.Trace | None = None, /, **settings: Any
) -> tuple[float, vf.Trace, FakeServer]:
    """Judge one trace through a real server."""
    trace = trace or answered("4", "4")

    async def run() -> tuple[float, FakeServer]:
        async with FakeServer(server) as served:
            judge = judge_at(served.base_url, **settings)
            value = await judge(trace)
            await judge.close()
            return value, served

    value, served = asyncio.run(run())
    return value, trace, served


@pytest.mark.parametrize(
    ("choice", "value"), [("right", 1.0), ("partly right", 0.5), ("**Wrong**.", 0.0)]
)
def test_the_verdict_is_the_value_of_its_choice(choice: str, value: float) -> None:
    assert judged(saying(*verdicts(choice)))[0] == value


def test_the_judge_sees_question_reference_and_answer_and_how_to_answer() -> None:
    _, _, server = judged(saying(*verdicts("right")), answered("It is four.", 4))
    system, user = (message["content"] for message in server.bodies[0]["messages"])
    nonce = nonce_of(server.bodies[0])
    for text in ("QUESTION", "Question?"), ("REFERENCE", "4"), ("ANSWER", "It is four."):
        assert f"<<<{text[0]} {nonce}\n{text[1]}\n{text[0]} {nonce}>>>" in user
    assert "wrong; partly right; right" in system
    assert server.bodies[0]["model"] == "judge"
    assert server.bodies[0]["temperature"] == 0.0


def test_without_a_golden_answer_there_is_no_reference() -> None:
    _, _, server = judged(saying(*verdicts("right")), answered("4", None))
    assert "REFERENCE" not in server.bodies[0]["messages"][1]["content"]


def test_several_criteria_are_weighed() -> None:
    reply = "Clear.\nVERDICT NONCE clear: somewhat\nRude.\nVERDICT NONCE rude: rude"
    value, trace, _ = judged(saying(reply), criteria=[CLEAR, RUDE])
    assert value == pytest.approx((0.4 + 3 * 1.0) / 4)
    assert trace.info["judge"]["judge"]["votes"][0]["choices"] == {
        "clear": "somewhat",
        "rude": "rude",
    }


def test_votes_are_averaged_or_the_most_frequent_counts() -> None:
    script = list(verdicts("right", "wrong", "right"))
    assert judged(saying(*script), votes=3)[0] == pytest.approx(2 / 3)
    assert judged(saying(*script), votes=3, combine="majority")[0] == 1.0
    tie = list(verdicts("right", "wrong"))
    assert judged(saying(*tie), votes=2, combine="majority")[0] == 0.0


def test_votes_are_drawn_with_different_seeds_and_nonces() -> None:
    _, _, server = judged(saying(*verdicts("right")), votes=4)
    assert sorted(body["seed"] for body in server.bodies) == [0, 1, 2, 3]
    assert len({nonce_of(body) for body in server.bodies}) == 4
    assert all(body["temperature"] == 1.0 for body in server.bodies)


def test_what_it_cost_is_in_the_record_and_not_in_the_reward() -> None:
    trace = answered("4", "4")
    with FakeServer(saying("Hm.", *verdicts("partly right"))) as server:
        judge = judge_at(server.base_url)
        scored = asyncio.run(vf.Rubric(outcome=judge).score(trace))
    assert (scored.reward, scored.outcome) == (0.5, 0.5)
    record = trace.info["judge"]["judge"]
    assert (record["requests"], record["prompt_tokens"], record["completion_tokens"]) == (
        2,
        200,
        20,
    )
    assert record["votes"][0]["reason"].startswith("I looked at it.")
    assert (judge.usage.requests, judge.usage.prompt_tokens) == (2, 200)
    assert vf.Trace.from_json(trace.to_json()).info == trace.info


async def ask_twice(first: Judge, second: Judge, *traces: vf.Trace) -> None:
    for judge, trace in zip((first, second), traces, strict=True):
        await judge(trace)


def test_the_same_question_is_asked_once() -> None:
    traces = [answered("4", "4"), answered("4", "4")]
    with FakeServer(saying(*verdicts("right"))) as server:
        judge = judge_at(server.base_url, votes=2)
        asyncio.run(ask_twice(judge, judge, *traces))
    assert judge.usage.from_cache == len(server.requests) == 2
    first, second = (trace.info["judge"]["judge"] for trace in traces)
    assert (first["prompt_tokens"], second["prompt_tokens"]) == (200, 0)
    assert [vote["cached"] for vote in second["votes"]] == [True, True]


@pytest.mark.parametrize(
    "change",
    [
        {"model": "another"},
        {"criteria": CLEAR},
        {"temperature": 0.5},
        {"max_tokens": 100},
        {"extra_body": {"top_k": 5}},
        {"reference": lambda trace: "five"},
        {"answer": lambda trace: "five"},
    ],
)
def test_whatever_matters_is_asked_again(change: dict[str, Any], tmp_path: Path) -> None:
    def reply(body: dict[str, Any]) -> str:
        clear = "Is it clear?" in str(body)
        return f"Seen.\nVERDICT NONCE {'clear: yes' if clear else 'correct: right'}"

    with FakeServer(saying(reply)) as server:
        settings = {"base_url": server.base_url, "api_key_env": None, "cache": tmp_path}
        first = Judge("judge", **settings)  # type: ignore[arg-type]
        second = Judge(**{"model": "judge"} | settings | change)
        asyncio.run(ask_twice(first, second, answered("4", "4"), answered("4", "4")))
    assert len(server.requests) == 2


def test_each_vote_is_kept_as_its_own() -> None:
    async def run() -> list[float]:
        async with FakeServer(saying(*verdicts("right", "wrong"))) as server:
            judge = judge_at(server.base_url, votes=2)
            return [await judge(answered("4", "4")) for _ in range(2)]

    assert asyncio.run(run()) == [0.5, 0.5]


def test_a_folder_outlives_the_judge_and_a_broken_file_is_asked_again(tmp_path: Path) -> None:
    def cached() -> list[Path]:
        return list(tmp_path.rglob("*.json"))

    with FakeServer(saying(*verdicts("right"))) as server:
        for damage, count in ((None, 1), (None, 1), ("{", 2)):
            if damage is not None:
                cached()[0].write_text(damage)
            judge = judge_at(server.base_url, cache=tmp_path)
            assert asyncio.run(judge(answered("4", "4"))) == 1.0
            assert len(server.requests) == count
    (file,) = cached()
    assert json.loads(file.read_text())["choices"] == {"correct": "right"}
    assert "Question?" not in file.read_text()


def test_an_error_is_never_cached() -> None:
    async def run() -> float:
        async with FakeServer(saying("Hm.", *verdicts("right"))) as server:
            judge = judge_at(server.base_url, retries=0)
            with pytest.raises(RubricError, match="no usable verdict"):
                await judge(answered("4", "4"))
            return await judge(answered("4", "4"))

    assert asyncio.run(run()) == 1.0


@pytest.mark.parametrize(
    ("server", "hint"),
    [
        (Response("no such key", 401), r"no such key.*\(no key was sent\): see api_key_env"),
        (Response("no model judge", 404), r"at http.*no model judge.*Is that the model's name"),
        (Response(b"<html>Oops</html>"), "not answer with a chat completion"),
    ],
)
def test_an_api_that_fails_is_an_error_and_not_a_reward(
    server: Script, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vf.inference.patience.pause", lambda backoff, attempt: 0.0)
    with pytest.raises(RubricError, match=f"'judge': judge.*{hint}"):
        judged(server, votes=3)


def test_where_no_server_runs_its_address_is_named() -> None:
    judge = judge_at("http://127.0.0.1:9/v1")
    judge._settings["max_retries"] = 0
    with pytest.raises(RubricError, match=r"127\.0\.0\.1:9/v1: .* Is a server running there"):
        asyncio.run(judge(answered("4", "4")))


def test_a_reply_that_was_cut_off_says_so() -> None:
    with pytest.raises(RubricError, match=r"cut off at max_tokens=7"):
        judged(chat("Let me think", "length"), max_tokens=7, retries=0)


def test_reasons_may_come_apart_from_the_verdict() -> None:
    def answer(request: Request) -> Response:
        verdict = f"VERDICT {nonce_of(request.body)} correct: right"
        return chat(verdict, reasoning_content="It is four.")

    assert judged(answer)[0] == 1.0


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"model": ""}, "name the model"),
        ({"api_key_env": "VF_NO_SUCH_KEY"}, "VF_NO_SUCH_KEY holds no key"),
        ({"api_key_env": None, "base_url": None}, "needs a key"),
        ({"votes": 0}, "votes"),
        ({"votes": 3, "temperature": 0.0}, "all the same"),
        ({"combine": "median"}, "'mean' or 'majority'"),
        ({"criteria": []}, "criteria"),
        ({"criteria": [CLEAR, CLEAR]}, "share a name"),
        ({"timeout": 0}, "timeout"),
        ({"retries": -1}, "retries"),
        ({"temperature": -1.0}, "temperature"),
    ],
)
def test_wrong_settings_are_refused_at_load_time(settings: dict[str, Any], hint: str) -> None:
    usual = {"model": "judge", "base_url": "http://127.0.0.1:9/v1", "api_key_env": None}
    with pytest.raises(ConfigError, match=f"judge 'judge': .*{hint}"):
        Judge(**usual | settings)


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VF_JUDGE_KEY", "secret")
    with FakeServer(saying(*verdicts("right"))) as server:
        judge = Judge("judge", base_url=server.base_url, api_key_env="VF_JUDGE_KEY")
        assert asyncio.run(judge(answered("4", "4"))) == 1.0
    [request] = server.requests
    assert request.headers["Authorization"] == "Bearer secret"
    assert "secret" not in json.dumps(request.body)
    monkeypatch.setenv("VF_JUDGE_KEY", "")
    with pytest.raises(ConfigError, match="VF_JUDGE_KEY holds no key"):
        Judge("judge", api_key_env="VF_JUDGE_KEY")


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"name": "two words"}, "one word"),
        ({"question": " "}, "question is empty"),
        ({"choices": {"yes": 1.0}}, "two or more"),
        ({"choices": {"yes": 1.0, "Yes.": 0.0}}, "look the same"),
        ({"choices": {"no": 0.0, "yes": 2.0}}, r"in \[0, 1\]"),
        ({"choices": {"a": 0.0, "b": 1.0, "c": 0.5}}, "rise or fall"),
        ({"choices": {"no": 1.0, "yes": 1.0}}, "rise or fall"),
        ({"weight": 0.0}, "weight"),
    ],
)
def test_wrong_criteria_are_refused(changes: dict[str, Any], hint: str) -> None:
    usual = {"question": "Is it?", "choices": {"no": 0.0, "yes": 1.0}, "name": "right"}
    with pytest.raises(ConfigError, match=f"criterion .*{hint}"):
        Criterion(**usual | changes)


def test_what_is_judged_must_be_text() -> None:
    with pytest.raises(RubricError, match=r"'judge': the answer to show is a int"):
        judged(saying(*verdicts("right")), answer=lambda trace: 4)
