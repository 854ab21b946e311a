"""`vf-rl search`: build, ask, look; exit codes and errors."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.tools.search.corpus import TOWNS
from tests.tools.search.serving import command, served
from vf.tools.commands.search import main
from vf.tools.search.tantivy_index import TantivyIndex


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "towns.jsonl"
    rows = [{"key": town.id, "title": town.title, "passage": town.text} for town in TOWNS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


FIELDS = ("--id-field", "key", "--text-field", "passage")


def test_build_query_and_info(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "deep" / "index")
    assert main(["build", str(corpus), "-o", out, *FIELDS, "--language", "none"]) == 0
    meta = TantivyIndex(out).meta
    assert (meta.documents, meta.language) == (5, None)
    assert capsys.readouterr().out == f"{out}: 5 documents, fingerprint {meta.fingerprint}\n"
    assert main(["query", out, "capital norway", "-k", "1"]) == 0
    assert capsys.readouterr().out.startswith('<result id="oslo" title="Oslo">\nOslo is the')
    assert main(["info", out]) == 0
    assert f"fingerprint  {meta.fingerprint}" in capsys.readouterr().out
    assert main(["build", str(corpus), "-o", out, *FIELDS]) == 2
    assert "exists already; to replace it, add --overwrite" in capsys.readouterr().err
    assert main(["build", str(corpus), "-o", out, *FIELDS, "--overwrite"]) == 0
    assert TantivyIndex(out).meta.language == "english"


def test_several_sources_and_a_bad_line(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "more.jsonl"
    other.write_text('{"key": "rome", "passage": "Rome."}\n{"key": "kyiv"}\n')
    sources = [str(corpus), str(other)]
    assert main(["build", *sources, "-o", str(tmp_path / "index"), *FIELDS]) == 2
    said = capsys.readouterr().err
    assert said == (
        f"vf-rl search: {other}, line 2: the field 'passage' (text) is missing; it has: key\n"
    )
    other.write_text('{"key": "rome", "passage": "Rome."}\n')
    assert main(["build", *sources, "-o", str(tmp_path / "index"), *FIELDS]) == 0
    assert TantivyIndex(tmp_path / "index").meta.documents == 6


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["info", "nowhere"], 2, "is not an index"),
        (["query", "nowhere", "x"], 2, "is not an index"),
        (["serve", "nowhere"], 2, "is not an index"),
        (["build", "nowhere.jsonl", "-o", "x"], 2, "there is no file"),
        (["query", "http://127.0.0.1:9", "x"], 1, "the retriever did not answer"),
        (["query", "http://:1", "x"], 2, "is not a retriever's URL"),
    ],
)
def test_failures_are_reported_in_a_line(
    args: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(args) == code
    said = capsys.readouterr().err
    assert said.startswith("vf-rl search: ")
    assert message in said
    assert "__file__" not in said  # which is for code
    assert said.count("\n") == 1


@pytest.mark.parametrize("args", [[], ["build"], ["nonsense"]])
def test_wrong_usage_exits_with_two(args: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(args)
    assert ended.value.code == 2


def test_an_empty_query_and_a_wrong_language_are_usage_errors(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = str(tmp_path / "index")
    args = ["build", str(corpus), "-o", index, *FIELDS]
    assert main([*args, "--language", "klingon"]) == 2
    assert "no stemmer knows the language 'klingon'" in capsys.readouterr().err
    assert main(args) == 0
    assert main(["query", index, " "]) == 2
    assert main(["query", index, "x", "-k", "0"]) == 2


@pytest.mark.slow
@pytest.mark.gate
def test_a_server_is_asked_like_a_folder(corpus: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    assert main(["build", str(corpus), "-o", str(index), *FIELDS]) == 0
    local = subprocess.run(command("query", index, "capital"), capture_output=True, text=True)
    with served(index) as (url, _):
        remote = subprocess.run(command("query", url, "capital"), capture_output=True, text=True)
    assert local.stdout.count("<result ") == 3
    assert (remote.stdout, remote.returncode, remote.stderr) == (local.stdout, 0, "")
