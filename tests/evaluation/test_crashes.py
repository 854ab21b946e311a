"""Killed at any moment, resumed exactly."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.evaluation.commands import call, flat, results, run, start, traces
from tests.evaluation.stand_in import MODEL, standing
from tests.waiting import wait_until

KILLS = 3
TOTALS = ("scored", "failed", "reward", "success", "pass_at", "pass_hat", "components", "turns",
          "prompt_tokens", "completion_tokens", "stop_reasons", "cost")  # fmt: skip


def rollouts(folder: Path) -> Counter[tuple[str, int]]:
    return Counter((t.task.id, t.info["eval"]["rollout"]) for t in traces(folder))


def lines(folder: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in folder.glob("*/*/traces.jsonl"))


def kill_after(process: subprocess.Popen[str], folder: Path, more: int) -> bool:
    """SIGKILL the process once it has written more traces; return whether it had not ended."""
    wanted = lines(folder) + more
    wait_until(lambda: process.poll() is not None or lines(folder) >= wanted)
    alive = process.poll() is None
    process.kill()
    process.communicate()
    return alive and process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_killed_again_and_again_every_rollout_is_there_once_and_the_totals_are_equal(
    tmp_path: Path,
) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text(f'[prices."{MODEL}"]\ninput = 1.0\noutput = 4.0\n')
    with standing(delay=0.03) as (url, server):
        argv = ["reverse-text", "-m", MODEL, "-b", url, "-n", "20", "-r", "4", "-c", "4"]
        argv += ["--prices", str(prices)]
        killed = 0
        for _ in range(KILLS):
            process = start(*argv, "-o", "broken", cwd=tmp_path)
            killed += kill_after(process, tmp_path / "broken", more=12)
        assert killed == KILLS
        assert KILLS * 12 <= lines(tmp_path / "broken") < 80
        code, _, err = run(*argv, "-o", "broken", cwd=tmp_path)
        assert code == 0, err
        code, _, err = run(*argv, "-o", "whole", "-c", "16", cwd=tmp_path)
        assert code == 0, err
        server.kill()
        assert server.stdout is not None
        asked = len(server.stdout.readlines())
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert set(rollouts(whole).values()) == {1}
    assert len(rollouts(whole)) == 80
    assert rollouts(broken) == rollouts(whole)
    mine, other = results(broken), results(whole)
    totals, expected = ({name: each[name] for name in TOTALS} for each in (mine, other))
    assert flat(totals) == pytest.approx(flat(expected))
    assert 0.3 < mine["reward"]["mean"] < 0.9
    # Only what was in flight was asked again, and the endpoint was tried once a start.
    assert 160 <= asked <= 160 + KILLS * 4 + (KILLS + 2)


def test_a_torn_last_line_is_retried_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    with standing() as (url, _):
        argv = ["reverse-text", "-m", MODEL, "-b", url, "-n", "6", "-o", str(folder)]
        assert call(capsys, *argv)[0] == 0
        (file,) = folder.glob("*/*/traces.jsonl")
        before = file.read_bytes()
        ids = [trace.id for trace in traces(folder)]
        file.write_bytes(before[:-40])
        code, _, err = call(capsys, *argv)
    assert code == 0
    assert "5 of 6 rollouts are done" in err
    after = traces(folder)
    assert [trace.id for trace in after[:5]] == ids[:5]
    assert set(rollouts(folder).values()) == {1}
    assert len(after) == 6


def test_failed_rollouts_are_retried_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [task.id for task in vf.make("reverse-text").tasks("eval")][:4]
    fixed, folder = tmp_path / "fixed", tmp_path / "out"
    with standing(fails=words[1:3], fixed=str(fixed)) as (url, server):
        argv = ["reverse-text", "-m", MODEL, "-b", url, "-n", "4", "-r", "2", "-o", str(folder)]
        code, out, _ = call(capsys, *argv, "--retry-errors")
        assert code == 1
        assert "4 failed in the model; the first" in out
        assert "cannot be answered" in out
        assert "2 skipped" in out
        found = results(folder)
        assert (found["scored"], found["failed"], found["missing"]) == (4, 4, 0)
        assert (found["pass_at"]["2"]["tasks"], found["pass_at"]["2"]["left_out"]) == (2, 2)
        kept = {trace.id for trace in traces(folder) if trace.error is None}
        fixed.touch()
        code, _, err = call(capsys, *argv)
        assert code == 0
        assert "4 of 8 rollouts are done" in err
        code, _, err = call(capsys, *argv)  # and there is nothing left to do
        assert code == 0
        server.kill()
        assert server.stdout is not None
        asked = [json.loads(line) for line in server.stdout.readlines()]
    assert len(asked) == (1 + 4 + 2 * 4) + (1 + 4)  # each failed one was tried twice
    failed = [seed for seed, prompt in asked[1:13] if prompt.endswith(tuple(words[1:3]))]
    assert len(set(failed)) == len(failed) == 2 * 4  # each time with another seed
    assert kept < {trace.id for trace in traces(folder)}
    assert set(rollouts(folder).values()) == {1}
    assert len(traces(folder)) == 8
    (away,) = folder.glob("*/*/failed/traces.jsonl")
    assert [trace.error is not None for trace in vf.TraceStore(away)] == [True] * 4


@pytest.mark.slow
@pytest.mark.gate
def test_a_larger_evaluation_adds_to_a_smaller_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grown, whole = tmp_path / "grown", tmp_path / "whole"
    with standing() as (url, server):
        argv = ["reverse-text", "-m", MODEL, "-b", url, "-o"]
        assert call(capsys, *argv, str(grown), "-n", "4")[0] == 0
        first = [trace.id for trace in traces(grown)]
        assert call(capsys, *argv, str(grown), "-n", "8")[0] == 0
        code, _, err = call(capsys, *argv, str(grown), "-n", "8", "-r", "3")
        assert code == 0
        assert "8 of 24 rollouts are done" in err
        assert call(capsys, *argv, str(whole), "-n", "8", "-r", "3")[0] == 0
        code, _, err = call(capsys, *argv, str(grown), "-n", "8", "-r", "2")
        server.kill()
        assert server.stdout is not None
        asked = [json.loads(line) for line in server.stdout.readlines()]
    assert len(asked) == (4 + 4 + 16 + 24) + 4  # and the endpoint was tried once a start
    assert [trace.id for trace in traces(grown)][:4] == first
    assert rollouts(grown) == rollouts(whole)
    mine, other = results(grown), results(whole)
    totals, expected = ({name: each[name] for name in TOTALS} for each in (mine, other))
    assert flat(totals) == pytest.approx(flat(expected))
    assert code == 2  # what is there holds more than was asked for
    assert "-r (rollouts_per_example): 3 → 2" in err


def test_other_tasks_in_front_are_another_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from vf.environments.bundled.reverse_text import ReverseText

    with standing() as (url, _), pytest.MonkeyPatch.context() as patch:
        argv = ["reverse-text", "-m", MODEL, "-b", url, "-o", str(tmp_path / "out")]
        assert call(capsys, *argv, "-n", "3")[0] == 0
        tasks = list(vf.make("reverse-text").tasks("eval"))
        patch.setattr(ReverseText, "tasks", lambda self, split: iter(tasks[1:]))
        code, _, err = call(capsys, *argv, "-n", "5")
    assert code == 2
    assert "tasks.reverse-text:" in err


def test_a_finished_evaluation_needs_no_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with standing() as (url, _):
        argv = ["reverse-text", "-m", MODEL, "-b", url, "-n", "2", "-o", str(tmp_path / "out")]
        first = call(capsys, *argv)[:2]
    again = call(capsys, *argv)[:2]
    assert again == first
    assert first[0] == 0


@pytest.mark.slow
def test_a_full_disk_is_said_with_the_file_that_has_no_room(tmp_path: Path) -> None:
    from vf.evaluation.results import ResultsFolder

    (tmp_path / "results.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"/results\.json could not be written: No space left"):
        ResultsFolder(tmp_path).write_results({})


def test_a_group_that_is_scored_together_is_retried_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "grouped_of_test.py").write_text(
        "import vf\n"
        "from vf.environments.bundled.reverse_text import ReverseText, exact\n"
        "def best(traces):\n"
        "    return [float(t.score.outcome == max(u.score.outcome for u in traces))\n"
        "            for t in traces]\n"
        "class Grouped(ReverseText):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.rubric = vf.Rubric(exact, group_rewards=[best])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    vf.register("grouped-of-test", "grouped_of_test:Grouped")
    folder = tmp_path / "out"
    with standing() as (url, _):
        argv = ["grouped-of-test", "-m", MODEL, "-b", url, "-n", "3", "-r", "4", "-o", str(folder)]
        assert call(capsys, *argv)[0] == 0
        whole: Any = results(folder)
        (file,) = folder.glob("*/*/traces.jsonl")
        file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))
        code, _, err = call(capsys, *argv)
    assert code == 0
    assert "8 of 12 rollouts are done" in err
    assert set(rollouts(folder).values()) == {1}
    assert flat(results(folder)["components"]) == pytest.approx(flat(whole["components"]))
    assert "part/best" in whole["components"]
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    code, _, err = call(capsys, *argv, "-r", "8")  # the server is gone: nothing may be put away
    assert code == 2, err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_results_of_the_smaller_evaluation_do_not_outlive_the_start_of_a_larger(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "out"
    with standing(delay=0.05) as (url, _):
        argv = ["reverse-text", "-m", MODEL, "-b", url, "-c", "1", "-o", "out"]
        code, _, err = run(*argv, "-n", "2", cwd=tmp_path)
        assert code == 0, err
        assert (folder / "results.json").exists()
        assert kill_after(start(*argv, "-n", "50", cwd=tmp_path), folder, more=2)
    assert not (folder / "results.json").exists()


@pytest.mark.slow
def test_two_at_once_in_one_folder_are_refused(tmp_path: Path) -> None:
    with standing(delay=0.5) as (url, _):
        argv = ["reverse-text", "-m", MODEL, "-b", url, "-n", "40", "-c", "1", "-o", "out"]
        first = start(*argv, cwd=tmp_path)
        wait_until(lambda: lines(tmp_path / "out"))
        code, _, err = run(*argv, cwd=tmp_path)
        first.terminate()
        _, said = first.communicate(timeout=60)
    assert code == 2
    assert "another vf-rl eval is writing to out" in err
    assert first.returncode == 128 + signal.SIGTERM
    assert "stopped by SIGTERM; run the same command to resume" in said


@pytest.mark.parametrize("garbage", [b"\x00\xff garbage", b'{"id": 5}', b"[]"])
def test_a_damaged_line_is_put_aside_and_its_rollout_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], garbage: bytes
) -> None:
    argv = ["reverse-text", "--agent", "oracle", "-n", "4", "-o", str(tmp_path / "out")]
    assert call(capsys, *argv)[0] == 0
    (file,) = (tmp_path / "out").glob("*/*/traces.jsonl")
    before = file.read_bytes().splitlines()
    file.write_bytes(b"".join(line + b"\n" for line in [before[0], garbage, *before[2:]]))
    damaged = file.read_bytes()
    code, _, err = call(capsys, *argv)
    assert code == 2
    assert "line 2: not a trace" in err
    assert "With --repair, such lines are put aside" in err
    assert file.read_bytes() == damaged
    code, _, err = call(capsys, *argv, "--repair")
    assert code == 0
    assert "damaged lines put aside" in err
    assert (file.parent / "failed" / "damaged.jsonl").read_bytes() == garbage + b"\n"
    after = file.read_bytes().splitlines()
    assert after[:3] == [before[0], *before[2:]]
    assert len(rollouts(tmp_path / "out")) == len(after) == 4


def test_a_rollout_of_another_task_stands_in_for_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["reverse-text", "--agent", "oracle", "-n", "4", "-o", str(tmp_path / "out")]
    assert call(capsys, *argv)[0] == 0
    (file,) = (tmp_path / "out").glob("*/*/traces.jsonl")
    before = file.read_text().splitlines(keepends=True)
    name = json.loads(before[1])["task"]["id"]
    file.write_text("".join(before).replace(f'"id":"{name}"', '"id":"of-another-evaluation"', 1))
    assert call(capsys, *argv)[0] == 0
    after = [json.loads(line)["task"]["id"] for line in file.read_text().splitlines()]
    assert sorted(after) == sorted(json.loads(line)["task"]["id"] for line in before)
    assert "of-another-evaluation" in (file.parent / "failed" / "traces.jsonl").read_text()
