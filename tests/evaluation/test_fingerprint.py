"""A result is resumed only while all that it depends on is as it was."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.evaluation.commands import call, environ, results
from tests.evaluation.stand_in import MODEL, standing
from vf.evaluation.fingerprint import describe_environment
from vf.evaluation.refusal import difference_lines

ENVIRONMENT = '''
import vf


def exact(trace):
    return float(trace.reply == trace.task.answer)


def rude(trace):
    return float("damn" in trace.reply)


class Backwards(vf.Environment):
    """Reverse words."""

    system_prompt = "Be brief."
    rubric = vf.Rubric(exact, [vf.Penalty(rude, 0.2)])
    max_turns = 2

    def tasks(self, split):
        for word in ("abcdef", "ghijkl", "mnopqr", "stuvwx"):
            yield vf.Task(f"{split}-{word}", f"Backwards: {word}", answer=word[::-1])

    @vf.tool
    def look(self, word: str) -> str:
        """Look at a word.

        Args:
            word: The word.
        """
        return word.upper()
'''
Edit = Callable[[str, str], None]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with standing() as (base, _):
        yield base


@pytest.fixture(autouse=True)
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Edit:
    """Write the environment's file, with something replaced, as a user edits it between runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / "backwards_of_test.py"
    file.write_text(ENVIRONMENT)

    def replace(old: str, new: str) -> None:
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
        sys.modules.pop("backwards_of_test", None)

    sys.modules.pop("backwards_of_test", None)
    return replace


FOLDER = Path("evals", f"backwards_of_test-{MODEL}")


def evaluate(capsys: Any, url: str, *more: str) -> tuple[int, str, str]:
    return call(capsys, "./backwards_of_test.py", "-m", MODEL, "-b", url, *more)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "return float(trace.reply == trace.task.answer)",
            "return 1.0",
            'rubric.source.backwards_of_test:exact, line 2: "return float(trace.reply == '
            'trace.task.answer)" → "return 1.0"',
        ),
        ("rude, 0.2", "rude, 0.3", "rubric.penalties.rude.weight: 0.2 → 0.3"),
        ("Be brief.", "Be quick.", 'system_prompt: "Be brief." → "Be quick."'),
        ("max_turns = 2", "max_turns = 3", "limits.max_turns: 2 → 3"),
        ("Look at a", "See a", 'tools.look.description: "Look at a word." → "See a word."'),
        ("word.upper()", "word * 2", 'look, line 3: "return word.upper()" → "return word * 2"'),
    ],
)
def test_an_edited_environment_is_refused_with_what_differs(
    capsys: Any, url: str, edit: Edit, old: str, new: str, said: str
) -> None:
    assert evaluate(capsys, url)[0] == 0
    before = {path: path.read_bytes() for path in FOLDER.rglob("*") if path.is_file()}
    edit(old, new)
    code, out, err = evaluate(capsys, url, "-r", "2")
    assert (code, out) == (2, "")
    differences = [line for line in err.splitlines() if " → " in line and line.startswith("  ")]
    assert len(differences) == 1
    assert said in differences[0]
    assert f"To measure beside it, in {FOLDER}@2, add --fresh" in err
    assert ("Only the rubric differs" in err) == ("rubric" in said)
    assert {path: path.read_bytes() for path in before} == before
    edit(new, old)
    code, _, err = evaluate(capsys, url, "-r", "2")
    assert code == 0
    assert "resuming: 4 of 8 rollouts are done" in err


def test_an_edit_that_changes_nothing_is_no_difference(capsys: Any, url: str, edit: Edit) -> None:
    assert evaluate(capsys, url)[0] == 0
    edit("    return float(trace.reply ==", "    # to the letter\n    return float(trace.reply ==")
    edit("Reverse words.", "Reverse all the words.")
    code, _, err = evaluate(capsys, url)
    assert code == 0
    assert "resuming: 4 of 4 rollouts are done" in err


def test_a_fresh_result_is_beside_the_old_one_and_is_then_resumed(
    capsys: Any, url: str, edit: Edit
) -> None:
    assert evaluate(capsys, url, "-n", "2")[0] == 0
    old = results(FOLDER)
    edit("return float(trace.reply == trace.task.answer)", "return 1.0")
    code, _, err = evaluate(capsys, url, "-n", "2", "--fresh")
    assert code == 0
    assert f"a new result, beside {FOLDER}: {FOLDER}@2" in err
    newer = FOLDER.with_name(f"{FOLDER.name}@2")
    assert results(newer)["reward"]["mean"] == 1.0
    assert results(FOLDER) == old
    code, _, err = evaluate(capsys, url, "-n", "3")
    assert code == 0
    assert "resuming: 2 of 3" in err
    assert results(newer)["rollouts"] == 3
    edit("return 1.0", "return float(trace.reply == trace.task.answer)")
    assert "resuming: 2 of 2" in evaluate(capsys, url, "-n", "2")[2]  # the first, as before
    edit("Be brief.", "Be quick.")  # which is nearer to the first
    code, _, err = evaluate(capsys, url, "-n", "2")
    assert code == 2
    assert f"{FOLDER} holds another evaluation" in err
    assert "rubric" not in err
    assert "leave it out to name one" in evaluate(capsys, url, "--fresh", "-o", "x")[2]


def test_the_command_that_is_offered_scores_the_old_rollouts(
    capsys: Any, url: str, edit: Edit
) -> None:
    assert evaluate(capsys, url)[0] == 0
    edit("return float(trace.reply == trace.task.answer)", "return 0.0")
    err = evaluate(capsys, url)[2]
    (command,) = [line for line in err.splitlines() if "--rescore" in line]
    code, out, err = call(capsys, *shlex.split(command)[2:])
    assert code == 0, err
    assert "→ 0.0000" in out
    file = FOLDER.with_name(f"{FOLDER.name}-rescored.jsonl")
    assert [trace.reward for trace in vf.TraceStore(file)] == [0.0] * 4


def test_a_folder_without_a_fingerprint_says_so(capsys: Any, url: str) -> None:
    assert evaluate(capsys, url)[0] == 0
    config = FOLDER / "config.json"
    old = json.loads(config.read_text())
    del old["format"], old["environments"]
    config.write_text(json.dumps(old))
    code, out, err = evaluate(capsys, url)
    assert (code, out) == (2, "")
    assert "was written by another version of vf-rl, which did not record all that a result" in err
    assert "add --fresh" in err
    assert " → " not in err
    assert json.loads(config.read_text()) == old


def test_a_tokenizers_chat_template_is_part_of_the_model(tmp_path: Path) -> None:
    from vf.evaluation.eval_config import ModelConfig
    from vf.evaluation.models import fingerprint

    for name in ("model", "tokenizer"):
        (tmp_path / name).mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    template = tmp_path / "tokenizer" / "chat_template.jinja"
    template.write_text("{{ messages }}")
    config = ModelConfig(model=str(tmp_path / "model"), tokenizer=str(template.parent))
    before = fingerprint(config) or {}
    template.write_text("{{ messages[1:] }}")
    after = fingerprint(config) or {}
    assert [name for name in before if before[name] != after[name]] == ["chat_template.jinja"]


BUNDLED = (
    *("calculator", "guess-number", "reverse-text", "math-python", "code-contest", "repo-fix"),
    "support-desk",
)
PROGRAM = f"""
import json, vf
from vf.evaluation.fingerprint import describe_environment
from vf.evaluation.refusal import difference_lines
for name in {BUNDLED}:
    env = vf.make(name)
    print(json.dumps(describe_environment(env)))
"""


@pytest.mark.slow
def test_bundled_environments_are_described_alike_in_another_process(tmp_path: Path) -> None:
    def said(seed: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=tmp_path,
            env=environ(PYTHONHASHSEED=seed),
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()

    first = said("1")
    assert said("2") == first
    for name, line in zip(BUNDLED, first, strict=True):
        env = vf.make(name)
        here = describe_environment(env)
        assert json.dumps(here) == line
        assert here["rubric"]["source"]
        assert str(tmp_path) not in line


def test_code_that_only_one_side_uses_is_left_out() -> None:
    code = {"a:scorer": "def scorer(): ..."}
    before = {"rubric": {"outcome": "a:scorer", "source": code}, "system_prompt": None}
    now = {
        "rubric": {"outcome": "b:other", "source": {"b:other": "...", "b:helper": "..."}},
        "system_prompt": "Be quick.",
    }
    lines = difference_lines(before, now)
    assert [line.partition(":")[0].strip() for line in lines] == ["rubric.outcome", "system_prompt"]
    changed = {**before, "rubric": {"outcome": "a:scorer", "source": {"a:scorer": "return 1.0"}}}
    assert len(difference_lines(before, changed)) == 1
    assert len(difference_lines({"source": code}, {"source": {}})) == 1
    assert difference_lines({"source": "docker"}, {"source": "local"}) == [
        '  source: "docker" → "local"'
    ]


def test_sandboxes_of_another_kind_are_one_line() -> None:
    def measured(backend: str) -> dict[str, Any]:
        made = vf.make("math-python", sandbox=backend)
        return {"environments": {"e": describe_environment(made)}}

    lines = difference_lines(measured("bubblewrap"), measured("docker"))
    assert lines == ["  sandboxes of e: bubblewrap → docker"]
    other = measured("docker")
    other["environments"]["e"]["system_prompt"] = "Be quick."
    assert len(difference_lines(measured("bubblewrap"), other)) == 2


def test_an_evaluation_in_which_all_failed_blocks_nothing(
    capsys: Any, url: str, edit: Edit
) -> None:
    edit(
        "    return float(trace.reply ==",
        '    raise OSError("broken")\n    return float(trace.reply ==',
    )
    assert evaluate(capsys, url)[0] == 1
    edit('    raise OSError("broken")\n', "")
    code, _, err = evaluate(capsys, url)
    assert code == 0
    assert f"all rollouts in {FOLDER} failed: starting again" in err
