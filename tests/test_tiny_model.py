"""How the shipped model is made: scripted agents, a tokenizer, two warm starts."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
import torch
from make_tiny_model import IMPERFECT, demonstrate, main, script
from transformers import AutoModelForCausalLM

import vf
from vf.environments.bundled.calculator import Calculator
from vf.inference.model_files import resolve_model

pytestmark = pytest.mark.slow


def rewards(behaviour: str, seed: int = 0) -> list[float | None]:
    """Return what scripted agents of one kind get for 40 tasks."""
    return [trace.reward for trace in asyncio.run(demonstrate(40, {behaviour: 1.0}, seed))]


def lines(behaviour: str, environment: Calculator, task: vf.Task) -> list[object]:
    """Return what an agent of one kind says."""
    said = script(behaviour, environment, task, random.Random(0))
    assert not callable(said)
    return list(said)


def test_faultless_agents_get_the_whole_reward() -> None:
    assert rewards("good") == [1.0] * 40


def test_imperfect_agents_fail_in_their_own_way() -> None:
    guessed = asyncio.run(demonstrate(40, {"guesses": 1.0}, 0))
    assert all(not trace.tool_events for trace in guessed)
    assert sum(trace.reward or 0 for trace in guessed) < 4
    early = asyncio.run(demonstrate(40, {"stops_early": 1.0}, 0))
    assert all(len(trace.tool_events) == 1 for trace in early)
    long = [trace for trace in early if trace.task.info["operations"] == 2]
    assert long
    assert sum(trace.reward or 0 for trace in long) < len(long) / 4
    assert sum(reward or 0 for reward in rewards("slips")) < 10


def test_a_slip_is_in_one_number_of_the_last_call() -> None:
    environment = Calculator(num_train=20)
    for task in environment.tasks("train"):
        slipped = lines("slips", environment, task)
        good = lines("good", environment, task)
        assert slipped[:-2] == good[:-2]
        assert len(slipped) == len(good)


def test_the_mix_is_as_asked() -> None:
    traces = asyncio.run(demonstrate(400, IMPERFECT, 0))
    guesses = sum(not trace.tool_events for trace in traces) / len(traces)
    assert guesses == pytest.approx(IMPERFECT["guesses"], abs=0.08)  # over three deviations


def test_the_whole_way_to_a_model_that_acts(tmp_path: Path) -> None:
    """With too few steps to learn more than a little."""
    out = tmp_path / "made"
    assert main([str(out), "--steps", "12", "--spoil-steps", "6", "--traces", "200"]) == 0
    model = AutoModelForCausalLM.from_pretrained(out / "model")
    assert model.dtype == torch.bfloat16
    shipped = AutoModelForCausalLM.from_pretrained(resolve_model("tiny"))
    shapes = {name: weight.shape for name, weight in model.state_dict().items()}
    assert shapes == {name: weight.shape for name, weight in shipped.state_dict().items()}
    first, second = (
        AutoModelForCausalLM.from_pretrained(folder).state_dict()["model.norm.weight"]
        for folder in (out / "faultless" / "model", out / "imperfect" / "model")
    )
    assert not torch.equal(first, second)
    assert torch.equal(second.bfloat16(), model.state_dict()["model.norm.weight"])


def test_an_old_folder_is_never_written_over(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "name a new folder" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
