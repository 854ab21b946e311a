"""wiki-qa: a user's own questions and corpus."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import vf
from vf.environments.bundled.wiki_qa import WikiQA, read_questions
from vf.runtime.calling import call
from vf.tools.search.build import build_index

PASSAGES = [
    {"id": "1", "contents": '"Ada Lovelace"\nAda Lovelace was a daughter of Lord Byron.'},
    {"id": "2", "contents": '"Lord Byron"\nLord Byron died in Missolonghi in 1824.'},
    {"id": "3", "contents": '"Missolonghi"\nMissolonghi is a town in Greece.'},
]
TRAIN = [
    {"id": "t0", "question": "Whose daughter was Ada Lovelace?", "golden_answers": ["Lord Byron"]}
]
EVAL = [
    {
        "id": 7,
        "question": "Where did the father of Ada Lovelace die?",
        "golden_answers": ["Missolonghi", "Mesolongi"],
        "metadata": {"hops": 2},
    }
]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    return {
        "train": write(tmp_path / "train.jsonl", TRAIN),
        "eval": write(tmp_path / "eval.jsonl", EVAL),
        "corpus": write(tmp_path / "corpus.jsonl", PASSAGES),
    }


def run(environment: vf.Environment, script: list[Any]) -> vf.Trace:
    (task,) = environment.tasks("eval")
    trace = asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(script)))
    assert trace.error is None
    return trace


GOOD: list[Any] = [
    {"search": {"query": "Ada Lovelace father"}},
    {"open": {"doc_id": "1"}},
    {"search": {"query": "Lord Byron died"}},
    {"open": {"doc_id": "2"}},
    "Answer: Missolonghi",
]


def test_search_open_answer_on_ones_own_files(files: dict[str, Any]) -> None:
    environment = WikiQA(**files)
    (task,) = environment.tasks("eval")
    assert (task.id, task.answer) == ("7", ["Missolonghi", "Mesolongi"])
    trace = run(environment, GOOD)
    assert trace.reward == 1.0
    assert trace.info["search"]["opened"] == ["1", "2"]
    assert trace.info["search"]["index"] == environment.search.index.fingerprint
    assert "Missolonghi in 1824" in trace.messages[-2].content


def test_a_changed_corpus_is_indexed_again_and_the_same_one_is_not(
    files: dict[str, Any], tmp_path: Path
) -> None:
    first = WikiQA(**files).search.index.fingerprint
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")}
    assert WikiQA(**files).search.index.fingerprint == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")} == kept
    write(tmp_path / "corpus.jsonl", PASSAGES[:2])
    assert WikiQA(**files).search.index.fingerprint != first


def test_the_corpus_may_be_a_folder_of_notes(files: dict[str, Any], tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    for passage in PASSAGES:
        (notes / f"{passage['id']}.md").write_text(passage["contents"])
    files["corpus"] = str(notes)
    first = WikiQA(**files).search.index.fingerprint
    trace = run(WikiQA(**files), ["Answer: Mesolongi"])
    assert trace.info["search"]["index"] == first
    next(notes.iterdir()).rename(notes / "renamed.md")
    assert WikiQA(**files).search.index.fingerprint != first


def test_an_index_that_was_built_before_serves_as_well(
    files: dict[str, Any], tmp_path: Path
) -> None:
    build_index(files.pop("corpus"), tmp_path / "index")
    assert run(WikiQA(**files, index=str(tmp_path / "index")), GOOD).reward == 1.0


def test_answering_from_memory_is_worth_half(files: dict[str, Any]) -> None:
    trace = run(WikiQA(**files), ["Answer: Mesolongi"])
    assert trace.score is not None
    assert trace.score.penalties["without_evidence"] == 1.0
    assert trace.reward == 0.5


def test_calls_beyond_the_free_ones_cost(files: dict[str, Any]) -> None:
    assert run(WikiQA(**files, free_calls=2), GOOD).reward == pytest.approx(1 - 0.2 * 2 / 4)


def test_f1_pays_a_part_of_the_answer(files: dict[str, Any], tmp_path: Path) -> None:
    files["eval"] = write(tmp_path / "e.jsonl", [EVAL[0] | {"golden_answers": "Missolonghi town"}])
    assert run(WikiQA(**files, outcome="f1"), GOOD).reward == pytest.approx(2 / 3)
    assert run(WikiQA(**files), GOOD).reward == 0.0


@pytest.mark.slow
def test_a_dead_retriever_is_found_before_the_run_and_earns_no_reward(
    files: dict[str, Any],
) -> None:
    del files["corpus"]
    environment = WikiQA(**files, index="http://127.0.0.1:9")
    with pytest.raises(vf.ConfigError, match=r"127\.0\.0\.1:9"):
        asyncio.run(call(environment.check))
    (task,) = environment.tasks("eval")
    trace = asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(GOOD)))
    assert trace.error is not None
    assert trace.error.boundary == "tool"
    assert trace.reward is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: expected an object with fields, got list"),
        ('{"question": "q", "golden_answers": ["a"]}', "line 2: the field 'id' is missing"),
        (
            '{"id": "x", "question": "q", "answers": ["a"]}',
            "line 2: the field 'golden_answers' is missing. Did you mean 'answers'",
        ),
        ('{"id": "x", "golden_answers": ["a"]}', "line 2: the field 'question' is missing"),
        (
            '{"id": "x", "question": 5, "golden_answers": ["a"]}',
            "line 2: the field 'question' must be a text that is not empty, got 5",
        ),
        ('{"id": true, "question": "q", "golden_answers": "a"}', "line 2: the field 'id' must"),
        ('{"id": "x", "question": " ", "golden_answers": "a"}', "line 2: the field 'question'"),
        (
            '{"id": "x", "question": "q", "golden_answers": []}',
            "line 2: the field 'golden_answers' must be a text or a list of texts",
        ),
        (
            '{"id": "x", "question": "q", "golden_answers": ["a", null]}',
            "line 2: the field 'golden_answers' must be a text that is not empty, got None",
        ),
        (
            '{"id": "t0", "question": "q", "golden_answers": "a"}',
            "line 2: the id 't0' is that of ",
        ),
    ],
)
def test_a_wrong_line_is_named_with_its_field(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps(TRAIN[0]) + "\n" + line + "\n", encoding="utf-8")
    with pytest.raises(vf.ConfigError) as error:
        read_questions(path)
    assert f"{path}, {message}" in str(error.value)


def test_empty_lines_are_skipped_and_an_empty_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text("\n\n" + json.dumps(TRAIN[0]) + "\n\n", encoding="utf-8")
    assert [item.id for item in read_questions(path)] == ["t0"]
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(vf.ConfigError, match="holds no questions"):
        read_questions(path)
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(vf.ConfigError, match="line 1: not JSON"):
        read_questions(path)


def test_a_question_in_both_files_is_an_error(files: dict[str, Any], tmp_path: Path) -> None:
    twin = EVAL[0] | {"question": "whose daughter was ADA LOVELACE"}
    files["eval"] = write(tmp_path / "eval.jsonl", [*EVAL, twin | {"id": "e2"}])
    with pytest.raises(vf.ConfigError, match=r"question 'e2' is question 't0' of the training"):
        WikiQA(**files)


def test_an_answer_that_nothing_could_equal_is_an_error(
    files: dict[str, Any], tmp_path: Path
) -> None:
    files["eval"] = write(tmp_path / "eval.jsonl", [EVAL[0] | {"golden_answers": ["A", "?!"]}])
    with pytest.raises(vf.ConfigError, match=r"golden answer '\?!' to question '7'"):
        WikiQA(**files)
    files["eval"] = write(tmp_path / "eval.jsonl", [EVAL[0] | {"golden_answers": ["A"]}])
    assert run(WikiQA(**files), [*GOOD[:-1], "Answer: a"]).reward == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": None, "eval": None}, "give a file of questions"),
        ({"corpus": None}, "give either index"),
        ({"index": "somewhere"}, "give either index"),
        ({"corpus": "/nowhere.jsonl"}, "cannot read the corpus /nowhere.jsonl"),
        ({"corpus": None, "index": "/nowhere"}, "/nowhere is not an index"),
        ({"train": "/nowhere.jsonl"}, "cannot read /nowhere.jsonl"),
        ({"free_calls": -1}, "free_calls must be at least 0"),
        ({"outcome": "bleu"}, "scored by em or f1"),
    ],
)
def test_settings_that_do_not_fit_are_config_errors(
    files: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(vf.ConfigError, match=message):
        WikiQA(**{**files, **changes})


def test_a_split_without_a_file_has_no_tasks(files: dict[str, Any]) -> None:
    del files["train"]
    assert list(WikiQA(**files).tasks("train")) == []
