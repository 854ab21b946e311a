"""`vf-rl view`, as it is run."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import vf
from vf.inference.rendering.renderer import token_texts
from vf.runtime.visible import visible
from vf.traces.view.sources import find_sources, refuse_foreign
from vf.trainer.commands.view import main


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with one real rollout."""
    script = vf.ScriptedModel([{"calculate": {"op": "+", "a": 2, "b": 3}}, "Answer: 5"])
    task = vf.Task("2 + 3", "Compute 2 + 3.", answer=5, info={"operations": 1})
    with vf.TraceStore(tmp_path / "run" / "traces" / "step-000001.jsonl") as store:
        store.append(asyncio.run(vf.rollout(vf.make("calculator"), task, script)))
    return tmp_path / "run"


def test_traces_and_runs_become_one_file(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = run.parent / "page.html"
    assert main([str(run), "-o", str(page)]) == 0
    assert page.read_bytes().startswith(b"<!doctype html><!-- vf-view -->")
    assert capsys.readouterr().out == f"1 traces in {page} (0.1 MB)\n"
    (run / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.5}\n')
    assert main([str(run), "-o", str(page)]) == 0
    assert capsys.readouterr().out == f"1 run, 1 traces in {page} (0.2 MB)\n"
    assert b'id="traces-page"' in page.read_bytes()
    (run / "other.txt").write_text("mine")
    assert main([str(run), "-o", str(run / "other.txt")]) == 2
    assert main([str(run), "-o", str(run)]) == 2
    assert "is a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("notes.md", "# A heading\n", "notes.md does not hold traces: line 1: not JSON. Name a"),
        ("tasks.jsonl", '{"prompt": "p"}\n', "line 1: not a trace: environment: Field required"),
        ("picture.png", "\x89PNG", "picture.png does not hold traces: line 1: not JSON"),
        ("metrics.jsonl", '{"step": 1}\n', "It belongs to a run: name {folder}. Name a"),
        (".", "", "tasks.jsonl does not hold traces: line 1: not a trace"),
    ],
)
def test_no_page_is_served_of_files_that_hold_no_traces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str, said: str
) -> None:
    file = tmp_path / name
    if name == ".":
        (tmp_path / "tasks.jsonl").write_text('{"prompt": "p"}\n')
    else:
        file.write_text(content)
    assert main([str(file)]) == 2
    printed = capsys.readouterr()
    assert said.format(folder=tmp_path) in printed.err
    assert "a run's folder (runs/NAME) or a results folder of vf-rl eval" in printed.err
    assert printed.out == ""
    if name != ".":
        assert main([str(file), "--plain"]) == 1
        assert "there are no traces. Name a traces file" in capsys.readouterr().err


def test_files_that_may_hold_traces_later_are_waited_for(run: Path, tmp_path: Path) -> None:
    trace = (run / "traces" / "step-000001.jsonl").read_bytes()
    contents = {"empty": b"", "torn": trace[:100], "damaged": b"no\n" + trace, "whole": trace}
    for name, content in contents.items():
        (tmp_path / f"{name}.jsonl").write_bytes(content)
        refuse_foreign(find_sources([tmp_path / f"{name}.jsonl"]))
    (tmp_path / "foreign.jsonl").write_bytes(b"no\n")
    refuse_foreign(find_sources([tmp_path]))  # one of them is enough


def test_parquet_names_the_model_and_not_what_an_evaluation_called_it(run: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    [trace] = vf.TraceStore(run / "traces" / "step-000001.jsonl")
    trace.info["eval"] = {"model": "policy"}
    results = run.parent / "results"
    with vf.TraceStore(results / "traces.jsonl") as store:
        store.append(trace)
    (results / "config.json").write_text('{"models": [{"name": "policy", "model": "tiny"}]}')
    assert main([str(results), "--export", str(run / "all.parquet")]) == 0
    assert parquet.read_table(run / "all.parquet")["model"].to_pylist() == ["tiny"]


def test_plain_prints_the_conversation(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run), "--plain"]) == 0
    said = capsys.readouterr().out
    for part in ("2 + 3", "reward 1.000", "Compute 2 + 3.", "→ calculate", "Answer: 5", "ok, "):
        assert part in said


def test_plain_text_cannot_command_the_terminal() -> None:
    evil = "\x1b]0;title\x07\x1b[2J\u202eabc\u200b\x9b31m\r\n\ttab"
    assert visible(evil) == (
        "<U+001B>]0;title<U+0007><U+001B>[2J<U+202E>abc<U+200B><U+009B>31m<U+000D>\n\ttab"
    )


def test_a_file_without_any_trace_fails_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.jsonl"
    file.write_text('{"loss": 1}\n{"loss": 2}\n')
    assert main([str(file), "-o", str(tmp_path / "page.html")]) == 1
    said = capsys.readouterr().err
    assert "2 lines are not a trace" in said
    assert f"{file}, line 1: not a trace: environment: Field required" in said
    assert [each.name for each in tmp_path.iterdir()] == ["other.jsonl"]


@pytest.mark.slow
def test_the_page_is_served_until_an_interrupt(run: Path) -> None:
    nowhere = run.parent / "rum"
    command = [sys.executable, "-m", "vf.trainer.commands.main", "view", str(run), str(nowhere)]
    process = subprocess.Popen(command, stdout=-1, stderr=-1, text=True)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        url = process.stdout.readline().split()[0]
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert answer.read().endswith(b"</body></html>\n")
        with urllib.request.urlopen(f"{url}events", timeout=60):  # an open page holds up no end
            process.send_signal(2)
            assert process.wait(timeout=60) == 0
        assert process.stderr.read() == (
            f"vf-rl view: {nowhere} does not exist yet. Did you mean 'run'? The page waits for "
            "it.\n"
        )
    finally:
        process.kill()
        process.wait()


def test_token_texts_come_from_the_models_own_tokenizer() -> None:
    from transformers import AutoTokenizer

    from vf.inference.model_files import resolve_model

    texts = token_texts("tiny")
    assert texts is not None
    ids = AutoTokenizer.from_pretrained(resolve_model("tiny"))("Compute 2 + 3.")["input_ids"]
    assert "".join(texts(ids)) == "Compute 2 + 3."
    assert texts([10**6, -1]) == ["", ""]
    assert token_texts("no/such-model") is None


def test_export_writes_what_is_asked_for(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("out.jsonl", "out.parquet"):
        file = run.parent / name
        assert main([str(run), "--export", str(file), "--min-reward", "1"]) == 0
        said = capsys.readouterr().out
        assert said.startswith(f"1 traces in {file} (")
        assert ("have no tokens" in said) == (name == "out.parquet")
        assert main([str(file), "--plain"]) == 0
        assert "Answer: 5" in capsys.readouterr().out
        assert main([str(run), "--export", str(file)]) == 2
        assert "exists and is never overwritten" in capsys.readouterr().err


def test_export_says_what_it_leaves_out(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (run / "traces" / "step-000001.jsonl").open("a") as file:
        file.write("junk\n")
    out = run.parent / "out.jsonl"
    assert main([str(run), "--export", str(out), "--stop-reason", "max_turns"]) == 1
    said = capsys.readouterr().err
    assert "1 line is not a trace and skipped" in said
    assert "skipped 1 traces that did not stop for max_turns" in said
    assert "there are no traces to export" in said
    assert not out.exists()
