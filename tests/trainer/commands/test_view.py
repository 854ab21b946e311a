"""`vf-rl view`, as it is run."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import vf
from vf.inference.rendering.renderer import token_texts
from vf.traces.view.plain import visible
from vf.trainer.commands.view import main


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with one real rollout."""
    script = vf.ScriptedModel([{"calculate": {"op": "+", "a": 2, "b": 3}}, "Answer: 5"])
    task = vf.Task("2 + 3", "Compute 2 + 3.", answer=5, info={"operations": 1})
    with vf.TraceStore(tmp_path / "run" / "traces" / "step-000001.jsonl") as store:
        store.append(asyncio.run(vf.rollout(vf.make("calculator"), task, script)))
    return tmp_path / "run"


def test_a_run_becomes_a_page_beside_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run)]) == 0
    page = run / "traces.html"
    assert page.read_bytes().startswith(b"<!doctype html><!-- vf-view -->")
    assert capsys.readouterr().out == f"1 traces in {page} (0.1 MB)\n"


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


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["nowhere.jsonl"], "there is no nowhere.jsonl"),
        (["{run}", "-o", "{run}"], "is a folder"),
        (["{run}", "--plain", "--serve"], "--plain cannot be combined"),
        (["{run}", "--port", "80"], "--port needs --serve"),
    ],
)
def test_bad_usage(
    run: Path, argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main([each.format(run=run) for each in argv])
    except SystemExit as error:
        code = int(error.code or 0)
    assert code == 2
    assert said in capsys.readouterr().err


def test_a_file_without_any_trace_fails_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.jsonl"
    file.write_text('{"loss": 1}\n{"loss": 2}\n')
    assert main([str(file)]) == 1
    said = capsys.readouterr().err
    assert "2 lines are not a trace" in said
    assert f"{file}, line 1: not a trace: environment: Field required" in said
    assert [each.name for each in tmp_path.iterdir()] == ["other.jsonl"]


def test_serving_answers_this_machine_only_and_ends_on_interrupt(run: Path) -> None:
    command = [sys.executable, "-m", "vf.trainer.commands.main", "view", str(run), "--serve"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert answer.read().endswith(b"</body></html>\n")
        for wrong, code in (
            (urllib.request.Request(url, headers={"Host": "evil.example:80"}), 403),
            (urllib.request.Request(url + "etc/passwd"), 404),
        ):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(wrong, timeout=30)
            assert refused.value.code == code
        process.send_signal(2)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()
    assert not (run / "traces.html").exists()


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


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--min-reward", "1"], "need --export"),
        (["--export", "a.jsonl", "--serve"], "--export cannot be combined"),
        (["--export", "a.csv"], "Known: .jsonl (OpenAI chat), .parquet"),
        (["--export", "a.parquet", "--bare"], "bare is about OpenAI chat lines"),
        (["--export", "a.jsonl", "--stop-reason", "tired"], "invalid choice"),
    ],
)
def test_bad_exports(
    run: Path, argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main([str(run), *argv])
    except SystemExit as error:
        code = int(error.code or 0)
    assert code == 2
    assert said in capsys.readouterr().err
