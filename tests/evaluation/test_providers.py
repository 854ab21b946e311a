"""`vf-rl eval` against every provider of the table, with tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.commands import call, results, traces
from tests.inference.providers.fake import Fake, standing
from tests.inference.providers.table import BROKEN_OFF, PROVIDERS
from vf.traces.trace import StopReason

SIZE = ("--tasks", "6", "-c", "3", "--output", "out")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.mark.parametrize("name", PROVIDERS)
def test_an_evaluation_with_tools_ends_with_the_right_rewards(name: str, capsys: Any) -> None:
    provider = PROVIDERS[name]
    fake = Fake(provider, first=[*provider.fails, *BROKEN_OFF[:1]])
    with standing(fake) as url:
        code, _, err = call(capsys, "calculator", "-m", "m", "-b", url, *SIZE)
    assert code == 0, err
    found = results(Path("out"))
    assert (found["scored"], found["reward"]["mean"]) == (6, 1.0)
    for trace in traces(Path("out")):
        assert {event.kind for event in trace.tool_events} == {"ok"}
        ids = [each.id for message in trace.messages for each in message.tool_calls]
        assert len({*ids}) == len(ids)
        assert all(ids)
        thought = [message.reasoning for message in trace.messages if message.role == "assistant"]
        assert all(thought) == provider.thinks


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_context_that_is_full_after_good_turns_is_a_truncation(name: str, capsys: Any) -> None:
    with standing(Fake(PROVIDERS[name], turns=1)) as url:
        code, _, err = call(capsys, "calculator", "-m", "m", "-b", url, *SIZE)
    assert code == 0, err
    assert results(Path("out"))["scored"] == 6
    for trace in traces(Path("out")):
        assert (trace.stop_reason, trace.reward) == (StopReason.MAX_SEQ_LEN, 0.0)
