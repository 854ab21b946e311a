"""Tasks from data: what can be read, how it is split and shuffled, and what is refused."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import vf
from vf.environments.datasets.tasks import held_out, shuffled
from vf.environments.environment import Split

ROWS: list[dict[str, Any]] = [
    {"prompt": f"What is {n} squared?", "answer": str(n * n), "level": n % 3} for n in range(60)
]


def ids(source: Any, split: Split, **settings: Any) -> list[str]:
    return [task.id for task in vf.tasks_from(source, split, **settings)]


def prompts(source: Any, split: Split, **settings: Any) -> list[Any]:
    return [task.prompt for task in vf.tasks_from(source, split, **settings)]


def every(source: Any, **settings: Any) -> list[vf.Task]:
    """Return the tasks of both splits in the source's own order."""
    found = {
        str(task.prompt): task
        for split in ("train", "eval")
        for task in vf.tasks_from(source, split, **settings)
    }
    return [found[row["prompt"]] for row in ROWS]


def write_jsonl(path: Path, rows: list[Any] = ROWS) -> Path:
    path.write_text("\n\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def write_json(path: Path) -> Path:
    path.write_text(json.dumps(ROWS, indent=1), encoding="utf-8-sig")
    return path


def write_jsonl_gz(path: Path) -> Path:
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, ROWS)).encode()))
    return path


def write_csv(path: Path) -> Path:
    separator = "\t" if path.suffix == ".tsv" else ","
    lines = [separator.join(map(str, row.values())) for row in ROWS]
    path.write_text("\r\n".join([separator.join(ROWS[0]), *lines]), encoding="utf-8-sig")
    return path


def write_parquet(path: Path) -> Path:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(ROWS), path)
    return path


WRITERS: dict[str, Callable[[Path], Path]] = {
    "rows.jsonl": write_jsonl,
    "rows.ndjson": write_jsonl,
    "rows.JSONL": write_jsonl,
    "rows.jsonl.gz": write_jsonl_gz,
    "list.json": write_json,
    "lines.json": write_jsonl,
    "rows.csv": write_csv,
    "rows.tsv": write_csv,
    "rows.parquet": write_parquet,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_file_gives_the_same_tasks(name: str, tmp_path: Path) -> None:
    path = WRITERS[name](tmp_path / name)
    expected = every(ROWS)
    assert len(expected) == 60
    assert every(path) == every(str(path)) == expected


def test_rows_can_come_from_a_list_a_generator_or_a_function(tmp_path: Path) -> None:
    def generate() -> Iterator[dict[str, Any]]:
        yield from ROWS

    expected = prompts(ROWS, "train")
    assert prompts(generate(), "train") == expected
    assert prompts(generate, "train") == expected
    halves = [write_jsonl(tmp_path / f"{n}.jsonl", ROWS[n : n + 30]) for n in (0, 30)]
    assert prompts(halves, "train") == expected


@pytest.mark.parametrize("streaming", [False, True])
def test_a_hugging_face_dataset_by_name(
    streaming: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "squares"
    folder.mkdir()
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    (folder / "test.jsonl").write_text(json.dumps(ROWS[0]))
    assert every(f"hf:{folder}", streaming=streaming) == every(ROWS)
    assert prompts({"eval": f"hf:{folder}@test"}, "eval") == [ROWS[0]["prompt"]]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_loaded_hugging_face_dataset(streaming: bool) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list(ROWS)
    assert every(data.to_iterable_dataset() if streaming else data) == every(ROWS)


def test_a_hugging_face_name_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    with pytest.raises(vf.ConfigError, match=r"cannot load hf:.*nowhere"):
        vf.tasks_from(f"hf:{tmp_path}/nowhere", "train")


@pytest.mark.parametrize(("source", "package"), [("x.parquet", "pyarrow"), ("hf:a/b", "datasets")])
def test_a_missing_package_is_named_with_its_extra(
    source: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.parquet").touch()
    monkeypatch.chdir(tmp_path)
    for module in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(vf.ConfigError, match=rf"'{package}': pip install 'vf-rl\[data\]'"):
        list(vf.tasks_from(source, "train"))


def test_fields_are_names_or_functions_of_the_row() -> None:
    rows = [{"q": f"{n}?", "options": ["a", "b"], "key": n, "gold": 0} for n in range(40)]
    (task, *_) = vf.tasks_from(
        rows,
        "train",
        prompt=lambda row: [{"role": "user", "content": f"{row['q']} {row['options']}"}],
        answer=lambda row: row["options"][row["gold"]],
        id="key",
        info=["options"],
    )
    number = int(task.id)
    assert task.prompt == [{"role": "user", "content": f"{number}? ['a', 'b']"}]
    assert (task.answer, task.info) == ("a", {"options": ["a", "b"]})
    assert next(vf.tasks_from(rows, "train", prompt="q", answer=None)).answer is None


def test_the_splits_share_nothing_and_their_sizes_are_as_asked() -> None:
    rows = [{"prompt": f"{n}?", "answer": n} for n in range(4000)]
    for share in (0.05, 0.2, 0.5):
        train, held = (prompts(rows, split, eval_share=share) for split in ("train", "eval"))
        assert sorted(train + held) == sorted(str(row["prompt"]) for row in rows)
        # Five standard deviations of a binomial: the hash is fixed, so this never flickers.
        assert abs(len(held) - 4000 * share) < 5 * (4000 * share * (1 - share)) ** 0.5


def test_a_problem_that_occurs_twice_is_in_one_split() -> None:
    twice = [
        {"prompt": form.format(n), "answer": answer}
        for n in range(200)
        for answer, form in enumerate(("Is {} odd?", "  IS\n{}  odd? ", "ｉｓ {} odd?"))
    ]
    numbers = [
        {"".join(c for c in text if c.isdigit()) for text in prompts(twice, split)}
        for split in ("train", "eval")
    ]
    assert numbers[0] & numbers[1] == set()
    assert len(numbers[0]) + len(numbers[1]) == 200
    assert sum(len(prompts(twice, split)) for split in ("train", "eval")) == 600


def test_rows_that_are_added_move_no_other_and_a_larger_share_only_takes_from_train() -> None:
    few, more = ROWS[:30], [*ROWS[30:], *ROWS[:30]]
    for split in ("train", "eval"):
        assert set(ids(few, split, eval_share=0.3)) <= set(ids(more, split, eval_share=0.3))
    assert set(ids(ROWS, "eval", eval_share=0.2)) < set(ids(ROWS, "eval", eval_share=0.5))


def test_what_is_kept_together_is_on_one_side() -> None:
    rows = [
        {"prompt": f"{document}: {n}?", "answer": n, "document": document}
        for document in range(50)
        for n in range(4)
    ]
    train, held = (
        {str(prompt).partition(":")[0] for prompt in prompts(rows, split, keep_together="document")}
        for split in ("train", "eval")
    )
    assert held
    assert len(train) + len(held) == 50
    # By the prompt alone, the questions of a document are torn apart.
    torn = [{str(p).partition(":")[0] for p in prompts(rows, s)} for s in ("train", "eval")]
    assert torn[0] & torn[1]


def test_of_given_splits_train_loses_what_eval_holds(caplog: pytest.LogCaptureFixture) -> None:
    leaking = {"prompt": ROWS[50]["prompt"].upper(), "answer": "?"}
    sources = {"train": [*ROWS[:40], leaking], "eval": ROWS[40:]}
    assert prompts(sources, "train") == [row["prompt"] for row in ROWS[:40]]
    assert "1 rows of the train split are left out" in caplog.text
    assert prompts(sources, "eval") == [row["prompt"] for row in ROWS[40:]]
    assert prompts({"eval": ROWS}, "train") == []


def test_ids_are_the_contents_and_the_same_content_is_one_task() -> None:
    first = {task.prompt: task.id for task in vf.tasks_from(ROWS, "train")}
    again = {task.prompt: task.id for task in vf.tasks_from([*ROWS[::-1], *ROWS], "train")}
    assert first == again
    assert len(set(first.values())) == len(first)
    changed = [{**row, "answer": "?"} for row in ROWS]
    assert not set(ids(changed, "train")) & set(first.values())
    # Written down: an id that changes with the library would start evaluations again.
    assert ids({"eval": ROWS[:2]}, "eval") == ["ff38817199dfdb91", "104d473b762704f9"]


def test_the_split_is_the_same_in_every_version() -> None:
    assert [n for n in range(40) if held_out(f"problem {n}", 0.1)] == [4, 7, 19, 21, 25, 39]


def test_a_shuffle_is_of_its_seed_alone() -> None:
    plain, one, again, other = (prompts(ROWS, "train", shuffle=seed) for seed in (None, 1, 1, 2))
    assert one == again
    assert sorted(plain) == sorted(one) == sorted(other)
    assert plain != one != other


def test_a_shuffle_in_a_buffer_holds_no_more_than_that() -> None:
    taken = 0

    def endless() -> Iterator[int]:
        nonlocal taken
        for taken in count(1):  # noqa: UP028 (how far it got is what is tested)
            yield taken

    drawn = shuffled(endless(), seed=0, buffer=50)
    first = [next(drawn) for _ in range(200)]
    assert taken == 250
    assert len(set(first)) == 200
    assert first != sorted(first)
    assert max(number - place for place, number in enumerate(first)) <= 51


def test_a_shuffle_that_fits_its_buffer_is_even() -> None:
    firsts = [next(shuffled(range(4), seed, 10)) for seed in range(4000)]
    assert all(900 < firsts.count(number) < 1100 for number in range(4))  # 3.6 deviations


def test_a_stream_without_an_end_is_read_no_further_than_needed() -> None:
    read = 0

    def endless() -> Iterator[dict[str, Any]]:
        nonlocal read
        for read in count(1):
            yield {"prompt": f"{read}?", "answer": read}

    assert len(ids(endless, "train", limit=20)) == 20
    assert read < 40
    assert ids(endless, "eval", limit=5, shuffle=3, buffer=30) == ids(
        endless, "eval", limit=5, shuffle=3, buffer=30
    )


def test_a_file_is_streamed(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([*map(json.dumps, ROWS), "{broken"]))
    assert len(ids(path, "train", limit=20)) == 20  # without ever reaching the broken line
    with pytest.raises(vf.ConfigError, match=r"rows.jsonl, line 61: not JSON"):
        ids(path, "train")


BAD_FILES = [
    ("a.jsonl", '{"prompt": "x", "answer": 1}\n[1]\n', "a.jsonl, line 2: expected an object"),
    (
        "a.jsonl",
        '\n{"prompt": "x"}\n',
        r"a.jsonl, line 2: the field 'answer' \(answer\) is missing",
    ),
    ("a.jsonl", '{"promt": "x", "answer": 1}', "Did you mean 'promt'.* It has: promt, answer"),
    ("a.jsonl", '{"prompt": null, "answer": 1}', r"'prompt' \(prompt\) is missing.* has: answer"),
    ("a.jsonl", '{"prompt": " ", "answer": 1}', "line 1: the prompt is empty"),
    ("a.jsonl", '{"prompt": 3, "answer": 1}', "line 1: the prompt: .* got int"),
    ("a.jsonl", '{"prompt": [{"role": "me"}], "answer": 1}', "line 1: the prompt: .*role 'me'"),
    ("a.jsonl", '{"prompt": "x", "answer": NaN}', "line 1: answer is not what JSON can hold"),
    ("a.jsonl", b'{"prompt": "\xff", "answer": 1}', "line 1: not JSON"),
    ("a.jsonl", '{"prompt": "\\ud83d", "answer": 1}', "line 1: prompt is not what JSON can hold"),
    ("a.jsonl", '{"prompt": "x", "answer": "\\ud83d"}', "line 1: answer is not what JSON can"),
    ("a.jsonl", "", "a.jsonl has no rows"),
    ("a.csv", "", "a.csv has no rows"),
    ("a.csv", "prompt,answer\nx,1\n\ny\n", "a.csv, line 4: 1 cells under a header of 2"),
    ("a.csv", 'prompt,answer\n"x\ny",1\nz,2,3\n', "a.csv, line 4: 3 cells under a header"),
    ("a.csv", "prompt,prompt\nx,1\n", "a.csv, line 1: the header names a field twice"),
    ("a.csv", 'prompt,answer\n"x"y,1\n', "a.csv, line 2: not CSV in UTF-8"),
    ("a.csv", b"prompt,answer\n\xff,1\n", "a.csv, line 2: not CSV in UTF-8"),
    ("a.csv", "question,answer\nx,1\n", r"line 2: the field 'prompt' \(prompt\) is missing"),
    ("a.parquet", "no parquet", "a.parquet, after row 0: not Parquet"),
    ("a.jsonl.gz", "no gzip", "cannot read .*a.jsonl.gz"),
    ("a.txt", "x", "of what kind is it"),
    ("a.json", "[]", "a.json has no rows"),
    ("a.json", "", "a.json has no rows"),
    (
        "a.json",
        '[{"prompt": "x", "answer": 1}, 1]',
        "a.json, row 2: expected an object with fields, got int",
    ),
    ("a.json", "[{}", "a.json: not JSON"),
    ("a.json", '{"train": [\n{"prompt": "x"}]}', "holds neither a list of objects nor an object"),
]


@pytest.mark.parametrize(("name", "text", "said"), BAD_FILES)
def test_what_is_wrong_in_a_file_is_reported_with_its_place(
    name: str, text: str | bytes, said: str, tmp_path: Path
) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(vf.ConfigError, match=said):
        [ids(path, split) for split in ("train", "eval")]


def test_a_folder_is_reported_with_the_files_that_it_holds(tmp_path: Path) -> None:
    with pytest.raises(vf.ConfigError, match=r"is a folder without a file that ends in .*\.json"):
        ids(tmp_path, "train")
    for name in ("train.jsonl", "test.jsonl", "README.md"):
        (tmp_path / name).write_text("")
    said = r"is a folder with test\.jsonl, train\.jsonl; name one of its files, or a list"
    with pytest.raises(vf.ConfigError, match=said):
        ids(tmp_path, "train")
    with pytest.raises(vf.ConfigError, match=r"no file .*/tran.jsonl\. Did you mean 'train.jsonl'"):
        ids(tmp_path / "tran.jsonl", "train")


BAD_CALLS: list[tuple[Any, dict[str, Any], str]] = [
    (ROWS, {"split": "test"}, "must be 'train' or 'eval', got 'test'"),
    (ROWS, {"eval_share": 0}, "eval_share must be above 0 and below 1, got 0"),
    (ROWS, {"eval_share": 1}, "eval_share must be above 0 and below 1, got 1"),
    (ROWS, {"limit": 0}, "buffer and limit must be at least 1"),
    (ROWS, {"buffer": 0}, "buffer and limit must be at least 1"),
    (ROWS, {"info": ["levl"]}, r"row \d+: the field 'levl' \(info\).* Did you mean 'level'"),
    (ROWS, {"id": "level"}, r"row \d+: the id '\d' is that of row \d+ as well"),
    (ROWS, {"id": lambda row: 0.5}, r"row \d+: the id must be a text or a whole number, got 0.5"),
    (ROWS, {"id": lambda row: " "}, r"row \d+: the id must be a text or a whole number"),
    (
        ROWS,
        {"answer": lambda row: row["x"]},
        r"answer=<lambda> failed: KeyError: 'x'; .*has: prompt",
    ),
    (ROWS, {"id": lambda row: "\ud83d"}, r"row \d+: id is not what JSON can hold"),
    (ROWS, {"keep_together": lambda row: "\ud83d"}, "row 1: keep_together is not what JSON"),
    (ROWS, {"answer": lambda row: {1}}, "answer is not what JSON can hold"),
    (ROWS[:3], {"split": "eval", "eval_share": 0.001}, "none of the 3 rows .* the eval split"),
    ({"train": ROWS, "test": ROWS}, {}, "keys 'train' and 'eval', got 'train', 'test'"),
    ([], {}, "the source has no rows .a generator can be read only once"),
    ([1], {}, "row 1: expected an object with fields, got int"),
    (3, {}, "the data must be a file, .* got int"),
    ("nowhere.jsonl", {}, r"no file nowhere.jsonl, as seen from .*with_name\('nowhere.jsonl'\)"),
]


@pytest.mark.parametrize(("source", "settings", "said"), BAD_CALLS)
def test_what_is_wrong_in_a_call_is_reported(source: Any, settings: Any, said: str) -> None:
    with pytest.raises(vf.ConfigError, match=said):
        ids(source, **{"split": "train", **settings})


def test_a_validated_environment_reads_a_file_beside_its_code(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl")

    class Squares(vf.Environment):
        """Asks from a file."""

        rubric = vf.Rubric(outcome=lambda trace: trace.reply == trace.task.answer)

        def tasks(self, split: Split) -> Iterator[vf.Task]:
            return vf.tasks_from(path, split, eval_share=0.3)

    assert asyncio.run(vf.validate(Squares(), tasks=4)).finding("tasks").status == "ok"
