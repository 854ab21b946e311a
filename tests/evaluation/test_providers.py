"""`vf-rl eval` against every provider of the table, with tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.commands import call, results, traces
from tests.inference.providers.fake import Fake, standing
from tests.inference.providers.table import BROKEN_OFF, PROVIDERS
from vf.inference.models.request_fields import _warn
from vf.traces import view
from vf.traces.trace import StopReason
from vf.trainer.commands.main import main

SIZE = ("--tasks", "3", "-c", "3", "--output", "out")
# One of each kind; `tests/inference/providers/test_readers.py` reads what each provider says.
QUICK = {"openai", "gemini", "anthropic", "mistral", "vllm", "gateway"}
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in PROVIDERS]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr("vf.inference.patience.pause", lambda backoff, attempt: 0.0)


@pytest.mark.parametrize("name", NAMES)
def test_an_evaluation_with_tools_ends_with_the_right_rewards(name: str, capsys: Any) -> None:
    provider = PROVIDERS[name]
    fake = Fake(provider, first=[*provider.fails, *BROKEN_OFF[:1]])
    with standing(fake) as url:
        code, _, err = call(capsys, "calculator", "-m", "m", "-b", url, *SIZE)
    assert code == 0, err
    found = results(Path("out"))
    assert (found["scored"], found["reward"]["mean"]) == (3, 1.0)
    for trace in traces(Path("out")):
        assert {event.kind for event in trace.tool_events} == {"ok"}
        ids = [each.id for message in trace.messages for each in message.tool_calls]
        assert len({*ids}) == len(ids)
        assert all(ids)
        thought = [message.reasoning for message in trace.messages if message.role == "assistant"]
        assert all(thought) == provider.thinks


@pytest.mark.parametrize("name", NAMES)
def test_a_context_that_is_full_after_good_turns_is_a_truncation(name: str, capsys: Any) -> None:
    with standing(Fake(PROVIDERS[name], turns=1)) as url:
        code, _, err = call(capsys, "calculator", "-m", "m", "-b", url, *SIZE)
    assert code == 0, err
    assert results(Path("out"))["scored"] == 3
    for trace in traces(Path("out")):
        assert (trace.stop_reason, trace.reward) == (StopReason.MAX_SEQ_LEN, 0.0)


@pytest.mark.parametrize("variable", [True, False])
def test_a_local_server_needs_no_key(
    variable: bool, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with standing(Fake(PROVIDERS["llama.cpp"])) as url:
        if variable:
            monkeypatch.setenv("OPENAI_BASE_URL", url)
        argv = ["calculator", "-m", "m", *([] if variable else ["-b", url]), *SIZE]
        code, _, err = call(capsys, *argv)
    assert code == 0, err
    assert results(Path("out"))["reward"]["mean"] == 1.0


@pytest.mark.parametrize("owner", ["vllm", "somebody"])
def test_a_model_in_vllm_is_not_sampled_as_its_generation_config_says(
    owner: str, capsys: Any
) -> None:
    fake = Fake(PROVIDERS["vllm"], owner=owner)
    with standing(fake) as url:
        code, out, err = call(capsys, "calculator", "-m", "m", "-b", url, *SIZE)
    assert code == 0, err
    own = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    sent = {name: body[name] for body in fake.bodies[1:] for name in own if name in body}
    said = "m: answers are sampled with temperature = 1, top_p = 1"
    if owner == "vllm":
        assert sent == own
        assert all(own.keys() <= body.keys() for body in fake.bodies[1:])
        assert f"{said}, top_k = 0, min_p = 0, repetition_penalty = 1\n" in out + err
    else:
        assert sent == {}
        assert f"{said}; top_k, min_p, repetition_penalty as the API has it" in out + err


def test_what_an_api_does_not_take_is_noted_once(capsys: Any, caplog: Any) -> None:
    _warn.cache_clear()
    with standing(Fake(PROVIDERS["openai"])) as url:
        _, out, err = call(capsys, "calculator", "-m", "m", "-b", url, *SIZE)
        note = "m: the API does not take max_tokens, which is sent as max_completion_tokens"
        assert (out + err + caplog.text).count(note) == 1
        argv = ["calculator", "-m", "m", "-b", url, "--temperature", "0.5", *SIZE[:2]]
        code, out, err = call(capsys, *argv, "--output", "other")
    assert code == 2
    assert "request_fields = { temperature = false }" in out + err


@pytest.mark.parametrize(
    "words",
    ["This model does not support tools", "`tool choice` requires --enable-auto-tool-choice"],
)
def test_an_api_without_tools_gets_advice(words: str, capsys: Any) -> None:
    with standing(Fake(PROVIDERS["openai"], [(400, {"error": {"message": words}})] * 9)) as url:
        code, out, err = call(capsys, "calculator", "-m", "m", "-b", url, *SIZE)
    assert code == 2
    assert words in out + err
    assert "add --tool-style text" in out + err


def test_a_setting_drops_a_field(capsys: Any) -> None:
    with standing(fake := Fake(PROVIDERS["openai"])) as url:
        Path("eval.toml").write_text(
            f"""
            tasks = 2
            temperature = 0.5
            output = "out"
            environments = [{{ id = "calculator" }}]
            [[models]]
            model = "m"
            base_url = "{url}"
            request_fields = {{ temperature = false, max_tokens = "max_completion_tokens" }}
            """
        )
        code, _, err = call(capsys, "eval.toml")
    assert code == 0, err
    assert not any("temperature" in body or "max_tokens" in body for body in fake.bodies)
    assert "max_tokens" not in err


@pytest.mark.parametrize(
    ("name", "reason", "shown"),
    [
        ("azure", "content_filter", "stopped by the provider's content filter"),
        ("gemini", "content_filter: SAFETY", "stopped by the provider's content filter"),
        ("anthropic", "refusal", "refused, as the provider says"),
        ("mistral", "model_length", "cut at the token limit"),
    ],
)
def test_how_answers_ended_is_in_trace_table_and_page(
    name: str, reason: str, shown: str, capsys: Any
) -> None:
    body = PROVIDERS[name].answer("I can", reason=reason)
    with standing(lambda request: (200, body)) as url:
        code, out, err = call(capsys, "reverse-text", "-m", "m", "-b", url, *SIZE)
    assert code == 0, err
    assert f"3 of 3 answers: {shown}" in out
    kinds = {"refusal": "refusal", "model_length": "length"}
    kind = kinds.get(reason, "content_filter")
    assert results(Path("out"))["finish_reasons"] == {kind: 3}
    for trace in traces(Path("out")):
        assert (trace.turns[0].finish_reason, trace.reward) == (kind, 0.0)
    assert main(["view", "out", "--plain"]) == 0
    assert shown in capsys.readouterr().out
    script = Path(view.__file__).parent / "assets" / "conversation.js"
    assert f'{kind}: "{shown}"' in script.read_text()
