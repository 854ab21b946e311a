"""Which files are read, whatever state they are in, and what is written of them."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import vf
from tests.traces.agents import delegated
from tests.traces.view.material import ATTACK, TRICKS, hostile, research
from vf.runtime.errors import ConfigError
from vf.traces.trace import Branch, Origin
from vf.traces.view import sources
from vf.traces.view.encode import pack_trace, row_of
from vf.traces.view.plain import print_trace
from vf.traces.view.sources import Unreadable, find_sources, read
from vf.traces.view.write_page import Written, write_page


def save(file: Path, *traces: vf.Trace) -> Path:
    with vf.TraceStore(file) as store:
        for trace in traces:
            store.append(trace)
    return file


def write(page: Path, *files: Path) -> Written:
    return write_page(find_sources(files), page, title="a title")


def unpack(data: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack_from("<I", data)
    return json.loads(data[4 : 4 + length]), data[4 + length :]


def test_models_of_one_name_in_two_folders_keep_their_tokenizers(tmp_path: Path) -> None:
    trace = research()
    trace.info["eval"] = {"model": "policy"}
    for folder in ("one", "two"):
        save(tmp_path / folder / "traces.jsonl", trace)
        models = {"models": [{"name": "policy", "model": f"{folder}/model"}]}
        (tmp_path / folder / "config.json").write_text(json.dumps(models))
    asked: list[str] = []
    page = tmp_path / "page.html"
    found = find_sources([tmp_path / "one", tmp_path / "two"])
    write_page(found, page, title="t", texts_of=asked.append)
    assert asked == ["one/model", "two/model"]
    [blob] = re.findall(rb'id="index">([^<]*)<', page.read_bytes())
    rows = json.loads(zlib.decompress(base64.b64decode(blob)))["rows"]
    assert [row["model"] for row in rows] == ["policy", "policy (two/model)"]


def test_a_run_folder_means_its_traces_and_a_results_folder_each_models(tmp_path: Path) -> None:
    run, results = tmp_path / "run", tmp_path / "results"
    (run / "traces" / "superseded-1").mkdir(parents=True)
    (run / "config.toml").write_text('model = "tiny"')
    (run / "metrics.jsonl").write_text("{}\n")
    save(run / "traces" / "superseded-1" / "step-000001.jsonl", research())
    step = save(run / "traces" / "step-000001.jsonl", research())
    cell = save(results / "quiz" / "a-b" / "traces.jsonl", research())
    save(results / "quiz" / "a-b" / "failed" / "traces.jsonl", research())
    (results / "config.json").write_text('{"models": [{"name": "a/b", "model": "x/y"}]}')
    found = find_sources([run, results, step])
    assert [source.path for source in found] == [step, cell]
    assert [source.models for source in found] == [{"": "tiny"}, {"a/b": "x/y"}]
    trace = research()
    trace.info["eval"] = {"model": "a/b"}
    assert found[1].model_of(trace) == "a/b"
    assert [source.path for source in find_sources([tmp_path])] == [cell, step]


def test_what_is_not_there_is_named_with_the_nearest(tmp_path: Path) -> None:
    save(tmp_path / "traces.jsonl", research())
    with pytest.raises(ConfigError, match=r"there is no .*trace.jsonl. Did you mean 'traces.json"):
        find_sources([tmp_path / "trace.jsonl"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no traces file"):
        find_sources([tmp_path / "empty"])


def test_lines_that_are_not_traces_are_distinguished(tmp_path: Path) -> None:
    file = tmp_path / "mixed.jsonl"
    whole = research().to_json()
    lines = [
        whole,
        b"",
        b"\xff\x00 not text",
        b'{"reward": 1}',
        b"[" * 100_000,
        b'{"id": 7, "messages": [{"role": "user", "content": "hi"}]}',
        b'{"messages": [{"role": "wizard", "content": "hi"}]}',
        b"42",
    ]
    file.write_bytes(b"\n".join([*lines, whole[:-1]]))
    sizes: list[int] = []
    found = list(read(find_sources([file])[0], sizes.append))
    assert sum(sizes) == file.stat().st_size
    problems = {each.line: each.why for each in found if isinstance(each, Unreadable)}
    assert list(problems) == [3, 4, 5, 7, 8, 9]
    assert "environment: Field required" in problems[4]
    assert problems[9] == "not JSON, and the file ends in the middle of it"
    first, foreign = (each for each in found if isinstance(each, vf.Trace))
    assert first.id == "trace-0"
    assert foreign.info == {"foreign": True}
    assert foreign.messages[0].content == "hi"


def test_a_trace_after_a_mark_of_an_editor_is_one(tmp_path: Path) -> None:
    file = save(tmp_path / "t.jsonl", trace := research())
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    [found] = read(find_sources([file])[0])
    assert isinstance(found, vf.Trace)
    assert found.to_json() == trace.to_json()


def test_a_trace_with_a_wrong_field_is_no_conversation_of_others(tmp_path: Path) -> None:
    file = save(tmp_path / "t.jsonl", research())
    raw = json.loads(file.read_text())
    file.write_text(json.dumps(raw | {"seed": math.nan}) + "\n")
    [found] = read(find_sources([file])[0])
    assert found == Unreadable(1, "not a trace: seed: Input should be a finite number")


def test_a_line_without_end_is_counted_and_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MAX_LINE_BYTES", 50_000)
    file = tmp_path / "long.jsonl"
    file.write_bytes(b"x" * 170_000 + b"\n" + research().to_json() + b"\n")
    problem, trace = read(find_sources([file])[0])
    assert isinstance(problem, Unreadable)
    assert problem.line == 1
    assert isinstance(trace, vf.Trace)


def test_tokens_are_packed_without_loss() -> None:
    trace = research()
    body, arrays = unpack(pack_trace(trace))
    for branch, head in zip(trace.branches, body["branches"], strict=True):
        size = len(branch)
        ids = list(struct.unpack_from(f"<{size}I", arrays))
        steps = struct.unpack_from(f"<{size}H", arrays, 4 * size)
        arrays = arrays[6 * size :]
        assert ids == branch.token_ids
        for name, values in (
            ("mask", branch.loss_mask),
            ("turn", branch.turn_index),
            ("version", branch.weight_version),
        ):
            assert [v for value, n in head[name] for v in [value] * n] == values
        for index, (step, logprob) in enumerate(zip(steps, branch.logprobs, strict=True)):
            if step == 0xFFFF:
                assert float(head["unusual"][str(index)]) == logprob
            else:
                assert -step / 1000 == pytest.approx(logprob, abs=0.0005)
    assert arrays == b""
    assert body["branches"][1]["unusual"] == {"52": "-inf", "53": "-70"}
    assert len(trace.branches) == 2  # the trace itself is as it was
    assert body["seed"] == str(2**62 + 1)  # JavaScript would round it
    assert body["score"]["metrics"]["words"] == "nan"


def test_a_damaged_branch_is_shown_as_far_as_it_goes() -> None:
    trace = research()
    trace.branches = [Branch([1, -2, 2**40], [1, 0], [0.5, 0, 0], [0, 0, 0], [0, 0, 0])]
    body, arrays = unpack(pack_trace(trace))
    (head,) = body["branches"]
    assert head["size"] == 2
    assert "none, shown as 0" in head["problem"]
    assert struct.unpack("<2I", arrays[:8]) == (1, 0)
    assert head["unusual"] == {"0": "0.5"}
    trace.branches[0].token_ids = [1, 2, 3]
    assert "differ in length" in unpack(pack_trace(trace))[0]["branches"][0]["problem"]


def test_no_text_of_a_trace_is_markup_in_the_page_and_only_our_script_may_run(
    tmp_path: Path,
) -> None:
    page = tmp_path / "page.html"
    write_page(
        find_sources([save(tmp_path / "t.jsonl", hostile())]), page, title=f"{ATTACK}{TRICKS}"
    )
    html = page.read_text()
    for blob in re.findall(r'<script type="text/plain" id="\w+">([^<]*)</script>\n', html):
        assert re.fullmatch(r"[A-Za-z0-9+/=]+", blob)
        assert zlib.decompress(base64.b64decode(blob))
    rest = re.sub(r'<script type="text/plain".*\n', "", html)
    assert "pwned" not in html
    assert html.isascii() or not set("\u202e\u200b") & set(html)
    (script,) = re.findall(r"<script>(.*?)</script>", rest, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", rest, re.DOTALL)
    for kind, code in (("script", script), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in rest
    assert "default-src 'none'" in rest
    assert not re.search(r"https?://|url\(|@import", rest.replace("http-equiv", ""))


def test_a_trace_that_comes_twice_has_two_links(tmp_path: Path) -> None:
    save(tmp_path / "a.jsonl", research(), research())
    page = tmp_path / "page.html"
    assert write(page, tmp_path / "a.jsonl").traces == 2
    found = re.search(r'id="index">([^<]*)<', page.read_text())
    assert found
    index = json.loads(zlib.decompress(base64.b64decode(found[1])))
    assert [row["id"] for row in index["rows"]] == ["trace-0", "trace-0~2"]


def test_only_a_page_of_our_own_is_replaced(tmp_path: Path) -> None:
    file, page = save(tmp_path / "a.jsonl", research()), tmp_path / "report.html"
    page.write_text("<!doctype html>mine")
    with pytest.raises(ConfigError, match="was not made by vf-rl view"):
        write(page, file)
    assert page.read_text() == "<!doctype html>mine"
    page.unlink()
    write(page, file)
    write(page, file)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.jsonl", "report.html"]


def test_a_page_that_cannot_be_finished_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, page = save(tmp_path / "a.jsonl", research()), tmp_path / "page.html"
    write(page, file)
    before = page.read_bytes()

    def fail(model: str) -> None:
        raise OSError("the disk is full")

    (tmp_path / "config.toml").write_text('model = "m"')
    with pytest.raises(OSError, match="disk is full"):
        write_page(find_sources([file]), page, title="t", texts_of=fail)
    assert page.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 3


def test_a_row_says_what_the_table_needs() -> None:
    row = row_of(research(1))
    assert (row["reward"], row["stop"], row["turns"], row["tokens"]) == (0.0, "terminated", 3, 134)
    assert (row["calls"], row["failed"], row["forks"], row["sampled"]) == (3, 2, 1, 23)
    assert row["prompt"] == "Which river flows through city 1?"
    assert len(row_of(hostile())["task"]) <= 200
    evaluated, trained = research(1), research(1)
    evaluated.origin = None
    evaluated.info["eval"] = {"rollout": 3}
    trained.origin = Origin(step=1, group=2, rollout=4)
    assert (row_of(evaluated)["rollout"], row_of(trained)["rollout"]) == (3, 4)


def test_the_terminal_shows_every_conversation_and_what_the_program_left() -> None:
    console = Console(width=200, file=io.StringIO())
    print_trace(console, delegated())
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "conversation 2 of 3, conversation: the first message differs: 'You help.'" in said
    assert "conversation 3 of 3, parallel: asked again after 4 messages" in said
    assert said.count("You lead.") == said.count("I delegate.") == 1
    assert "(4 messages as before)\nassistant\n  Answer: B" in said
    helper = said[said.index("conversation 2 of 3") : said.index("conversation 3 of 3")]
    assert helper.index("search") < helper.index("ok, 0.000 s") < helper.index("found it")
    assert "output\n  Answer: B" in said
    assert "program: exit_code\n  0" in said
    assert "program: stderr\n  a warning" in said
    assert "file notes.md\n  # Notes" in said
