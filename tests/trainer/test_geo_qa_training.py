"""Real training in geo-qa: the embedded engine, the tiny model, the real index."""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path
from typing import Any

import pytest

import vf
from vf.environments.bundled.geo_qa import GeoQA
from vf.environments.bundled.wiki_qa import WikiQA
from vf.inference.model_files import resolve_model
from vf.inference.rendering.renderer import Renderer
from vf.traces.trace import Branch
from vf.trainer.rl_trainer import RLTrainer
from vf.trainer.settings.load_config import load_config

ROOT = Path(__file__).resolve().parent.parent.parent
vf.register("test-geo-qa", GeoQA)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.slow
def test_two_steps_with_right_masks(make_trainer: Any, tmp_path: Path) -> None:
    trainer: RLTrainer = make_trainer(
        env="test-geo-qa",
        env_args={"cities": 300, "max_hops": 1, "num_train": 20},
        max_steps=2,
        batch_size=8,
        rollouts_per_example=4,
        max_tokens=24,
        max_prompt_len=800,
        max_seq_len=1024,
    )
    for number in (1, 2):
        line = trainer.step()
        assert line["step"] == number
        assert line["logprob_gap"] < 0.01
    renderer = Renderer.from_pretrained(resolve_model("tiny"))
    files = sorted((tmp_path / "run" / "traces").glob("*.jsonl"))
    traces = [vf.Trace.from_json(row) for file in files for row in file.read_bytes().splitlines()]
    assert len(traces) == 16
    for trace in traces:
        assert trace.error is None
        assert trace.reward is not None
        assert {*trace.info["search"]} == {"queries", "found", "opened", "index"}
        (branch,) = trace.branches
        check_masks(renderer, trace, branch)


@pytest.mark.parametrize(("name", "factory"), [("geo-qa", GeoQA), ("wiki-qa", WikiQA)])
def test_the_config_that_ships_fits_its_environment(name: str, factory: Any) -> None:
    config, _ = load_config(ROOT / "configs" / f"{name}.toml")
    assert config.env[0].id == name
    inspect.signature(factory).bind(**config.env[0].args)
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert points["vf.environments"][name] == f"{factory.__module__}:{factory.__name__}"


def check_masks(renderer: Renderer, trace: vf.Trace, branch: Branch) -> None:
    """Turn by turn: what we said carries no loss; what the model said does, all of it."""
    said = [i for i, m in enumerate(trace.messages) if m.role == "assistant"]
    heard = 0
    for number, (place, turn) in enumerate(zip(said, trace.turns, strict=True)):
        tokens = [i for i, index in enumerate(branch.turn_index) if index == number]
        context, sampled = tokens[: -turn.completion_tokens], tokens[-turn.completion_tokens :]
        assert [branch.loss_mask[i] for i in tokens] == [0] * len(context) + [1] * len(sampled)
        assert all(branch.logprobs[i] == 0.0 for i in context)
        told = renderer.decode([branch.token_ids[i] for i in context])
        assert all(message.content in told for message in trace.messages[heard:place])
        written = renderer.decode([branch.token_ids[i] for i in sampled])
        assert trace.messages[place].content.strip() in written
        heard = place + 1
