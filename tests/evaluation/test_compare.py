"""Two evaluations of the same tasks: what pairing gives, and what it leaves out."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

import vf
from tests.evaluation.commands import call
from vf.evaluation.compare import compare
from vf.evaluation.estimators import Estimate, mean_of_tasks, t_quantile
from vf.evaluation.eval_config import slug
from vf.evaluation.fingerprint import FORMAT
from vf.evaluation.result_table import interval
from vf.evaluation.results import mark
from vf.traces.trace import Failure, Score


def write(
    path: Path,
    rewards: dict[str, list[float | None]],
    *,
    environment: str = "e",
    model: str = "m",
    prompt: str = "p",
) -> Path:
    """Write a folder of traces with these rewards by task; None is a failed rollout."""
    with vf.TraceStore(path / environment / slug(model) / "traces.jsonl") as store:
        for task_id, values in rewards.items():
            for index, value in enumerate(values):
                trace = vf.Trace(environment, vf.Task(task_id, prompt), seed=0)
                mark(trace, environment, model, index)
                if value is None:
                    trace.error = Failure("model", "ModelError", "gone", "")
                else:
                    trace.score = Score(reward=value, outcome=value)
                store.append(trace)
    return path


def test_a_line_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"1": [1.0, 0.0], "2": [0.0, 0.0]})
    b = write(tmp_path / "b", {"1": [1.0, 1.0], "2": [0.0, None]})
    before = compare(a, b)
    for folder, line in ((a, 0), (b, -1)):
        file = folder / "e" / "m" / "traces.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        file.write_text("".join([*lines, lines[line]]), encoding="utf-8")
    assert compare(a, b) == before


def test_an_infinite_reward_and_an_empty_file_are_named(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"1": [1.0, 0.0]})
    infinite = write(tmp_path / "b", {"1": [1.0, math.inf]})
    with pytest.raises(vf.ConfigError, match=r"traces\.jsonl has a reward of inf; .*--rescore"):
        compare(a, infinite)
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(vf.ConfigError, match=r"there are no traces in .*empty\.jsonl"):
        compare(a, empty)


def test_the_difference_is_of_the_task_means_and_its_interval_of_independent_numbers(
    tmp_path: Path,
) -> None:
    rng = random.Random(3)
    sides: list[dict[str, list[float]]] = []
    for shift in (0.0, 0.2):
        side = {}
        for task in range(9):
            p = task / 12 + shift
            side[str(task)] = [float(rng.random() < p) for _ in range(5)]
        sides.append(side)
    a, b = (write(tmp_path / n, dict(s)) for n, s in zip("ab", sides, strict=True))  # type: ignore[arg-type]
    (found,) = compare(a, b)
    differences = [fmean(sides[1][t]) - fmean(sides[0][t]) for t in sides[0]]
    row = found.rows["reward"]
    assert row.difference.mean == pytest.approx(fmean(differences))
    assert row.difference.mean == pytest.approx(row.mean_b - row.mean_a)
    half = t_quantile(0.975, 8) * stdev(differences) / math.sqrt(9)
    assert row.difference.low == pytest.approx(fmean(differences) - half)
    assert row.apart == (not fmean(differences) - half <= 0 <= fmean(differences) + half)
    assert found.rows["success"] == row
    assert found.notes == []


@pytest.mark.slow
@pytest.mark.gate
def test_pairing_covers_the_truth_and_is_shorter_than_two_separate_intervals() -> None:
    rng, hits, shorter, trials = random.Random(5), 0, 0, 1500
    for _ in range(trials):
        pairs = []
        for _ in range(30):
            p = rng.betavariate(1, 1) * 0.8
            pairs.append([fmean(float(rng.random() < q) for _ in range(4)) for q in (p, p + 0.1)])
        paired = mean_of_tasks([b - a for a, b in pairs])
        apart = [mean_of_tasks([pair[side] for pair in pairs]) for side in (0, 1)]
        assert paired.low is not None
        assert paired.high is not None
        hits += paired.low <= 0.1 <= paired.high
        separate = math.hypot(*(e.high - e.mean for e in apart if e.high is not None))
        shorter += paired.high - paired.mean < separate
    assert 0.93 <= hits / trials <= 0.97
    assert shorter / trials > 0.9


def test_equal_rewards_do_not_differ_by_rounding(tmp_path: Path) -> None:
    a: dict[str, list[float | None]] = {f"{n}": [0.1, 0.7, 0.1] for n in range(9)}
    b: dict[str, list[float | None]] = {f"{n}": [0.1, 0.1, 0.7] for n in range(9)}
    a["x"], b["x"] = [0.1, None, 0.1, 0.1], [0.1, 0.1]
    (found,) = compare(write(tmp_path / "a", a), write(tmp_path / "b", b))
    row = found.rows["reward"]
    assert (str(row.difference.mean), row.difference.low, row.apart) == ("0.0", None, False)
    assert interval(row.difference) == "0.000 (no interval)"
    assert interval(Estimate(-1e-9, -1e-9, -1e-9, 9)) == "0.000 [0.000, 0.000]"


def test_what_cannot_be_paired_is_left_out_and_said(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"1": [0.0, 1.0], "2": [1.0], "3": [None], "4": [0.0], "x": [1.0]})
    b = write(tmp_path / "b", {"1": [1.0, None], "2": [1.0], "3": [1.0], "4": [0.5]})
    write(tmp_path / "b", {"y": [0.0]})
    (found,) = compare(a, b)
    assert found.rows["reward"].difference.tasks == 3
    assert found.rows["reward"].difference.mean == pytest.approx((0.5 + 0.0 + 0.5) / 3)
    assert "2 tasks are in only one of the two and were skipped" in found.notes
    assert "reward: 1 tasks have no scored rollout in one of the two" in found.notes


def test_tasks_that_only_share_an_id_are_not_the_same(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"1": [1.0]})
    b = write(tmp_path / "b", {"1": [1.0]}, prompt="another question")
    with pytest.raises(vf.ConfigError, match="no task was scored in both evaluations"):
        compare(a, b)


def test_a_difference_in_how_the_two_were_measured_is_reported(tmp_path: Path) -> None:
    sides = []
    for name, prompt, temperature in (("a", "Be brief.", 1.0), ("b", "Be quick.", 0.5)):
        sides.append(write(tmp_path / name, {"t": [1.0]}))
        config = {
            "format": FORMAT,
            "settings": {"temperature": temperature, "seed": len(sides), "models": [name]},
            "environments": {"e": {"system_prompt": prompt}},
        }
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    (found,) = compare(sides[0], sides[1] / "e" / "m")
    assert found.notes == [
        "measured differently (A → B): temperature: 1.0 → 0.5",
        'measured differently (A → B): system_prompt: "Be brief." → "Be quick."',
    ]
    (same,) = compare(sides[0], sides[0])
    assert same.notes == []


def test_models_are_paired_by_name_or_where_there_is_one_each(tmp_path: Path) -> None:
    for name in ("m1", "m2"):
        write(tmp_path / "a", {"1": [0.0]}, model=name)
        write(tmp_path / "b", {"1": [1.0]}, model=name)
    write(tmp_path / "c", {"1": [1.0]}, model="m3")
    pairs = [(each.model_a, each.model_b) for each in compare(tmp_path / "a", tmp_path / "b")]
    assert pairs == [("m1 (a)", "m1 (b)"), ("m2 (a)", "m2 (b)")]
    with pytest.raises(vf.ConfigError, match=r"a has m1, m2 and .*c has m3; name the two"):
        compare(tmp_path / "a", tmp_path / "c")
    with pytest.raises(vf.ConfigError, match=r"like .*/d/e/org-m4$"):
        compare(write(tmp_path / "d", {"1": [0.0]}, model="org/m4"), tmp_path / "a")
    (found,) = compare(tmp_path / "a" / "e" / "m2", tmp_path / "c")
    assert (found.model_a, found.model_b) == ("m2", "m3")
    (same,) = compare(tmp_path / "a" / "e" / "m2", tmp_path / "b" / "e" / "m2")
    assert (same.model_a, same.model_b) == ("m2 (a)", "m2 (b)")
    assert compare(tmp_path / "c", tmp_path / "c")[0].model_a == "m3"


def test_a_folder_that_is_named_by_itself_does_not_repeat_its_model(tmp_path: Path) -> None:
    model = "runs/x/checkpoints/step-30/model"
    base = tmp_path / "e-runs-x-checkpoints-step-30-model"
    again = base.with_name(f"{base.name}@2")
    for folder in (base, again):
        write(folder, {"1": [1.0]}, model=model)
    (found,) = compare(base, again)
    assert (found.model_a, found.model_b) == (model, f"{model} (@2)")


def test_no_environment_in_common(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"1": [1.0]}, environment="e1")
    b = write(tmp_path / "b", {"1": [1.0]}, environment="e2")
    with pytest.raises(vf.ConfigError, match="no environment in common: e1 and e2"):
        compare(a, b)


def test_the_command_prints_a_table_or_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = write(tmp_path / "a", {str(n): [0.0, float(n % 5 == 0)] for n in range(20)})
    b = write(tmp_path / "b", {str(n): [1.0, float(n % 3 == 0)] for n in range(20)})
    code, out, _ = call(capsys, "--compare", str(a), str(b))
    assert code == 0
    assert "0.100" in out
    assert "0.675" in out
    assert "0.575 [" in out
    assert "* the interval excludes 0" in out
    code, out, _ = call(capsys, "--compare", str(a), str(b), "--json")
    (found,) = json.loads(out)
    rows: dict[str, Any] = found["rows"]
    assert rows["reward"]["difference"]["mean"] == pytest.approx(0.575)
