"""The mismatch of a run equals what numpy computes from the same tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

import vf
from tests.trainer.conftest import small_run
from vf.traces.learned import FOLDER, Learned, write_learned
from vf.traces.trace import Branch
from vf.trainer.commands.main import main
from vf.trainer.watching.mismatch import Tokens, compare, measure

CONTEXT, SAMPLED, BRANCHES = 60, 40, 5


def make_run(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Write a run whose sampler is wrong; returns log q and log p, ``[BRANCHES, SAMPLED]``."""
    rng = random.Random(0)
    ours, theirs, learned = [], [], []
    with vf.TraceStore(folder / "traces" / "step-000001.jsonl") as store:
        for index in range(BRANCHES):
            branch = Branch()
            branch.add_context([1] * CONTEXT, 0)
            q = [float(np.float32(-rng.expovariate(1))) for _ in range(SAMPLED)]
            p = [float(np.float32(each + rng.gauss(0, 0.5))) for each in q]
            branch.add_sampled([2] * SAMPLED, q, [0] * SAMPLED, 0)
            trace = vf.Trace("e", vf.Task(f"t{index}", "?"), seed=index, branches=[branch])
            store.append(trace)
            mask, zeros = [0] * CONTEXT + [1] * SAMPLED, [0.0] * SAMPLED
            learned.append(Learned(trace.id, 0, 1, mask, zeros, p, zeros))
            later = [each + 9.0 for each in p]  # of a second update: the weights have moved
            learned.append(Learned(trace.id, 0, 2, mask, zeros, later, zeros))
            ours.append(p)
            theirs.append(q)
    write_learned(folder / FOLDER / "step-000001.jsonl", learned)
    return np.array(theirs), np.array(ours)


def test_gaps_and_prices_equal_a_reference(tmp_path: Path) -> None:
    q, p = make_run(tmp_path)
    found = measure(tmp_path)
    gap = p - q
    whole = found.gaps[0]
    assert (whole.by, whole.tokens) == ("all", BRANCHES * SAMPLED)
    assert whole.kl == pytest.approx(-gap.mean(), rel=1e-12)
    assert whole.mean == pytest.approx(np.abs(gap).mean(), rel=1e-12)
    assert whole.largest == pytest.approx(np.abs(gap).max(), rel=1e-12)
    groups = {(each.by, each.group): each for each in found.gaps}
    unlikely = np.abs(gap[(np.exp(q) >= 0.1) & (np.exp(q) < 0.5)])
    assert groups["probability", "0.1 to 0.5"].mean == pytest.approx(unlikely.mean(), rel=1e-12)
    assert groups["position", "0 to 64"].tokens == BRANCHES * (64 - CONTEXT)
    assert groups["position", "64 to 256"].tokens == BRANCHES * (CONTEXT + SAMPLED - 64)
    assert groups["branch length", "64 to 256"].tokens == whole.tokens

    token = np.exp(gap)
    sequence = np.repeat(np.exp(gap.sum(1, keepdims=True)), SAMPLED, axis=1)
    assert [each.mode for each in found.prices] == [
        "token_truncate",
        "token_mask",
        "sequence_truncate",
        "sequence_mask",
    ]
    for price in found.prices:
        raw = sequence if price.mode.startswith("sequence") else token
        bounded = raw > 2.0
        weights = np.minimum(raw, 2.0)
        if price.mode.endswith("mask"):
            bounded |= raw < 0.5
            weights = np.where(bounded, 0.0, raw)
        squares = np.square(weights).sum()
        expected = weights.sum() ** 2 / (weights.size * squares) if squares else 0.0
        assert price.effective == pytest.approx(expected, rel=1e-9)
        assert price.bounded == pytest.approx(bounded.mean())


def test_the_command_prints_tables_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path)
    assert main(["mismatch", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "probability 0.1 to 0.5" in said
    assert "sequence_mask" in said
    assert main(["mismatch", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == measure(tmp_path).to_dict()


def test_a_run_that_kept_nothing_says_which_setting_keeps_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mismatch", str(tmp_path)]) == 2
    assert "not the folder of a run" in capsys.readouterr().err
    (tmp_path / "traces").mkdir()
    assert main(["mismatch", str(tmp_path)]) == 2
    assert "trainer.args.learned_groups" in capsys.readouterr().err
    assert main(["mismatch", str(tmp_path), "--set", "max_steps=2"]) == 2
    assert "--set is for a TOML" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gap", "cause"),
    [
        (0.0, "none: every token has the same bits"),
        (3e-6, "the order of sums in float32"),
        (0.02, "rounding: with all layers in bfloat16"),
        (0.3, "more than rounding: the engine samples from other weights"),
    ],
)
def test_the_cause_is_named_by_the_size_of_the_gap(gap: float, cause: str) -> None:
    gaps = torch.full((50,), gap, dtype=torch.float64)
    gaps[::2] *= -1
    branch = Tokens(gaps, torch.full_like(gaps, 0.5), torch.arange(10, 60), 60)
    rounding = {"head": gaps * 0 + 0.004, "MLP": gaps * 0 + 0.001, "all layers": gaps * 0 + 0.01}
    found = compare([branch], rounding)
    assert found.cause is not None
    assert found.cause.startswith(cause)
    if "rounding: with" in cause:
        assert "most with head alone (0.004)" in found.cause
    assert [(each.by, each.group) for each in found.rounding][-1] == ("layers", "all layers")


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_toml_is_measured_before_its_run(
    deterministic: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    small_run(tmp_path / "run.toml", max_tokens=12, bf16=False, deterministic=deterministic)
    assert main(["mismatch", "run.toml", "--json", "--set", "max_tokens=10"]) == 0
    found = json.loads(capsys.readouterr().out)
    whole, kinds = found["gaps"][0], {each["group"]: each for each in found["rounding"]}
    assert 8 <= whole["tokens"] <= 8 * 6 * 10, "rollouts, turns, tokens"
    assert (whole["largest"] == 0.0) == deterministic
    assert found["cause"].startswith("none" if deterministic else "the order of sums in float32")
    assert kinds["all layers"]["mean"] > 10 * whole["mean"]
    assert {"head", "attention", "MLP"} < kinds.keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.toml"], "nothing is kept"
