"""What `vf-rl eval` measures, shows and writes, from real runs."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest
from rich.console import Console

import vf
from tests.evaluation.commands import call, results, run, traces
from tests.evaluation.stand_in import MODEL, standing
from vf.evaluation.progress import Progress
from vf.evaluation.tally import Tally
from vf.sandbox.stats import ImageStats
from vf.traces.trace import Score

Capsys = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with standing() as (base, _):
        yield base


def test_the_results_are_those_of_the_traces(url: str, tmp_path: Path, capsys: Capsys) -> None:
    folder = tmp_path / "out"
    prices = tmp_path / "prices.toml"
    prices.write_text(f'[prices."{MODEL}"]\ninput = 1.0\noutput = 10.0\n')
    argv = ["reverse-text", "-m", MODEL, "-b", url, "-n", "10", "-r", "3", "-o", str(folder)]
    code, out, err = call(capsys, *argv, "--json", "--prices", str(prices))
    assert code == 0
    (said,) = json.loads(out)["results"]
    assert said == results(folder)
    every = traces(folder)
    assert len(every) == 30
    assert said["reward"]["mean"] == pytest.approx(fmean(t.reward or 0.0 for t in every))
    assert said["completion_tokens"] == sum(trace.completion_tokens for trace in every) == 150
    assert said["cost"] == pytest.approx((30 * 20 * 1.0 + 30 * 5 * 10.0) / 1e6)
    assert said["seconds"]["total"] == pytest.approx(sum(t.timing["total"] for t in every))
    assert said["stop_reasons"] == {"terminated": 30}
    assert set(said["pass_at"]) == {"1", "2", "3"}
    assert "metric/similarity" in said["components"]
    # The seeds are those of vf.evaluate, whatever the order.
    task = next(iter(vf.make("reverse-text").tasks("eval")))
    mine = {t.info["eval"]["rollout"]: t.seed for t in every if t.task.id == task.id}
    model = vf.ScriptedModel(lambda messages: "x")
    import asyncio

    evaluation = asyncio.run(
        vf.evaluate(vf.make("reverse-text"), model, tasks=[task], rollouts_per_example=3)
    )
    assert [mine[index] for index in range(3)] == [trace.seed for trace in evaluation.traces]
    assert "\x1b" not in err  # no terminal, no control codes
    assert "30/30 rollouts" in err
    assert "success" in err
    assert "cost 0.0021" in err


def test_prices_added_to_a_finished_evaluation_give_its_cost(
    url: str, tmp_path: Path, capsys: Capsys
) -> None:
    argv = ["reverse-text", "-m", MODEL, "-b", url, "-n", "3", "-o", str(tmp_path / "out")]
    assert call(capsys, *argv)[0] == 0
    assert results(tmp_path / "out")["cost"] is None
    prices = tmp_path / "prices.toml"
    for input in (1.0, 2.0):  # and prices that have changed replace the others
        prices.write_text(f'[prices."{MODEL}"]\ninput = {input}\noutput = 10.0\n')
        assert call(capsys, *argv, "--prices", str(prices))[0] == 0
        expected = (3 * 20 * input + 3 * 5 * 10.0) / 1e6
        assert results(tmp_path / "out")["cost"] == pytest.approx(expected)


def test_traces_are_written_beside_the_event_loop(
    url: str, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: set[threading.Thread] = set()
    append = vf.TraceStore.append

    def watched(store: vf.TraceStore, trace: vf.Trace, line: bytes | None = None) -> None:
        used.add(threading.current_thread())
        append(store, trace, line)

    monkeypatch.setattr(vf.TraceStore, "append", watched)
    first, again = tmp_path / "out", tmp_path / "again.jsonl"
    argv = ["reverse-text", "-m", MODEL, "-b", url, "-n", "3", "-o", str(first)]
    assert call(capsys, *argv)[0] == 0
    [file] = first.rglob("traces.jsonl")
    argv = ["--rescore", str(file), "--rubric", "reverse-text", "--output", str(again)]
    assert call(capsys, *argv)[0] == 0
    assert len(list(vf.TraceStore(again))) == 3
    assert used
    assert threading.main_thread() not in used


def test_a_disk_that_is_gone_ends_the_evaluation(url: str, tmp_path: Path, capsys: Capsys) -> None:
    folder = tmp_path / "out"
    argv = ["reverse-text", "-m", MODEL, "-b", url, "-n", "2", "-o", str(folder)]
    assert call(capsys, *argv)[0] == 0
    [file] = folder.rglob("traces.jsonl")
    file.unlink()
    file.symlink_to(tmp_path / "unplugged" / "traces.jsonl")
    (folder / "results.json").unlink()
    code, _, err = call(capsys, *argv)
    assert code == 1
    assert f"a trace could not be written to {file}" in err
    assert not (folder / "results.json").exists()


def test_several_environments_and_models_of_a_toml(
    url: str, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("two.toml").write_text(
        f"""
        rollouts = 2
        [[models]]
        model = "{MODEL}"
        base_url = "{url}"
        [[models]]
        model = "{MODEL}"
        name = "short"
        base_url = "{url}"
        extra_body = {{ truncate = 1 }}
        [[environments]]
        id = "reverse-text"
        tasks = 2
        [[environments]]
        id = "reverse-text"
        name = "long"
        args = {{ min_letters = 9 }}
        """
    )
    code, out, _ = call(capsys, "two.toml", "-n", "3", "--temperature", "0.5", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["folder"] == "evals/two"
    assert [
        (each["environment"], each["model"], each["rollouts"]) for each in found["results"]
    ] == [
        ("reverse-text", MODEL, 4),
        ("long", MODEL, 6),
        ("reverse-text", "short", 4),
        ("long", "short", 6),
    ]
    places = {str(p.relative_to("evals/two")) for p in Path("evals/two").glob("*/*/traces.jsonl")}
    assert places == {
        f"{environment}/{model}/traces.jsonl"
        for environment in ("reverse-text", "long")
        for model in (MODEL, "short")
    }
    config = json.loads(Path("evals/two/config.json").read_text())
    assert config["settings"]["temperature"] == 0.5
    code, out, _ = call(capsys, "--compare", "evals/two/long/stand-in", "evals/two/long/short")
    assert code == 0
    assert "0.000 (no interval)" in out  # the same seeds, the same answers


def test_tables_show_all_of_it(url: str, tmp_path: Path, capsys: Capsys) -> None:
    argv = ["reverse-text", "-m", MODEL, "-b", url, "-n", "8", "-r", "2", "-o", str(tmp_path / "o")]
    code, out, _ = call(capsys, *argv)
    assert code == 0
    for part in (
        "mean [95 % interval, clustered by task]",
        "pass@k: one succeeds",
        "pass^k: all succeed",
        "stop reasons: terminated 16",
        "turns 16, prompt tokens 320, sampled tokens 80",
        "metric/similarity",
        f"traces and results: {tmp_path / 'o'}",
    ):
        assert part in out


def test_a_terminal_shows_a_live_bar_with_the_time_left(capsys: Capsys) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    progress = Progress(console)
    tally = Tally("e", "m", 4, 1)
    progress.start([tally])
    trace = vf.Trace("e", vf.Task("1", "p"), seed=0)
    trace.score = Score(reward=0.25, outcome=1.0)
    tally.add(trace)
    progress.images(lambda: [str(ImageStats(requested=9, ready=3, failed=1, busy=("a", "b")))])
    progress.rollout(tally, trace)
    assert progress.eta is not None
    progress.stop()
    file = console.file
    assert isinstance(file, io.StringIO)
    shown = file.getvalue()
    assert "1/4 rollouts" in shown
    assert "left" in shown
    assert "images: 3 of 9 ready, 1 failed; making a, b" in shown
    assert "reward 0.250  success 100.0%" in shown


NOISY = """
import ctypes, os, subprocess, vf
print("imported")
class Noisy(vf.Environment):
    rubric = vf.Rubric(lambda trace: print("scored") or 1.0)
    def tasks(self, split):
        subprocess.run(["echo", "from a child"])
        os.write(1, b"a descriptor\\n")
        ctypes.CDLL(None).puts(b"from C")
        return [vf.Task(str(number), "x") for number in range(2)]
    def oracle(self, task):
        return ["x"]
"""


@pytest.mark.parametrize("command", [["noisy.py", "--agent", "nop"], ["--validate", "noisy.py"]])
def test_with_json_nothing_else_is_on_standard_output(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    _, out, err = run(*command, "--json", cwd=tmp_path)
    assert json.loads(out)
    for said in ("imported", "scored", "from a child", "a descriptor", "from C"):
        assert said in err


def test_the_display_says_what_is_being_loaded_until_something_else_is_said() -> None:
    console = Console(file=io.StringIO())
    progress = Progress(console)
    progress.say("tiny: loading torch and transformers ...")
    assert "tiny: loading torch and transformers ..." in progress._line()
    progress.say("tiny: starting the embedded engine")
    assert "no rollout has finished yet" in progress._line()
