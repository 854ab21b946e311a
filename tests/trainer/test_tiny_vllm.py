"""The server that stands in for vLLM in the checks of a cluster samples what it says it does."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import tiny_vllm
from cluster_traces import Answers

from vf.trainer.rl_trainer import RLTrainer

pytestmark = pytest.mark.slow


def inference(journal: Path, **settings: Any) -> dict[str, Any]:
    journal.mkdir()
    return {
        "engine": "vllm",
        "executable": shlex.join([sys.executable, tiny_vllm.__file__]),
        "env": {"TINY_VLLM_JOURNAL": str(journal), "OMP_NUM_THREADS": "1"},
        **settings,
    }


def claimed(trainer: RLTrainer, steps: int) -> set[int]:
    """Return the versions that the traces of a run name."""
    found = [*chain(*(trainer.folder.step_traces(step) for step in range(1, steps + 1)))]
    assert all(trace.error is None for trace in found)
    return {v for trace in found for branch in trace.branches for v in branch.weight_version}


def test_each_adapter_answers_for_itself(
    make_trainer: Callable[..., RLTrainer], tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    trainer = make_trainer(inference=inference(journal), max_steps=2, batch_size=8)
    lines = [trainer.step() for _ in range(2)]
    assert max(line["logprob_gap"] for line in lines) < 1e-4
    assert claimed(trainer, 2) == {-1, 0, 1}
    traces = [*chain(*map(trainer.folder.step_traces, (1, 2)))]
    assert Answers(journal).check(traces) == []
    place = traces[0].branches[0].loss_mask.index(1)
    traces[0].branches[0].weight_version[place:] = [5] * len(
        traces[0].branches[0].loss_mask[place:]
    )
    [problem] = Answers(journal).check(traces)
    assert "said to be from version ['5'], and is from" in problem


def test_whole_models_are_read_again_under_a_new_version(
    make_trainer: Callable[..., RLTrainer], tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    trainer = make_trainer(
        inference=inference(journal), use_lora=False, learning_rate=3e-4, max_steps=2, batch_size=8
    )
    lines = [trainer.step() for _ in range(2)]
    assert max(line["logprob_gap"] for line in lines) < 1e-4
    assert claimed(trainer, 2) == {-1, 0, 1}
    assert Answers(journal).check(chain(*map(trainer.folder.step_traces, (1, 2)))) == []
