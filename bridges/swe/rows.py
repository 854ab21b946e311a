"""Rows of SWE-bench and similar datasets, as tasks.

A row says which image holds the repository, what is wrong with it, and which tests tell whether it
has been repaired. The relatives use other names, and other types, for the same things:

- SWE-bench, SWE-Gym and SWE-rebench: ``instance_id``, ``repo``, ``base_commit``,
  ``problem_statement``, ``patch``, ``test_patch``, and ``FAIL_TO_PASS`` and ``PASS_TO_PASS``, lists
  or the text of lists, in JSON or in Python's notation.
- SWE-rebench: ``docker_image``, and ``install_config`` with ``test_cmd``.
- SWE-smith and sets like it: ``image_name``. What SWE-smith calls ``patch`` is the bug.
- R2E-Gym: ``repo_name``, ``commit_hash``, ``docker_image``, ``parsed_commit_content``, and
  ``expected_output_json``, each test's result after the repair.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from vf.runtime.errors import ConfigError, did_you_mean
from vf.runtime.rows import Placed, Row
from vf.traces.task import Task

PatchIs = Literal["fix", "bug"]
_IMAGE_FIELDS = ("image_name", "docker_image", "image")
_ISSUE = re.compile(r"\[ISSUE\](.*)\[/ISSUE\]", re.DOTALL)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
R2E_HIDDEN = ("/r2e_tests", "/root/r2e_tests", "r2e_tests", "run_tests.sh", "/root/run_tests.sh")
R2E_COMMAND = "[ -e r2e_tests ] || ln -s /r2e_tests r2e_tests; bash run_tests.sh"


@dataclass(frozen=True, slots=True)
class Instance:
    """A row, in one form for all datasets.

    Attributes:
        id: Its name.
        repo: ``owner/name``.
        statement: The problem, as the agent reads it.
        base_commit: The commit that is to be repaired; may be empty.
        image: The image that holds the repository; empty where it is built from a folder.
        fix: The patch that solves it; empty where it is not known.
        bug: A patch that first breaks the repository; usually empty.
        test_patch: Brings the tests; empty where they are there already.
        must_pass: Tests that the repair must make pass.
        keep_passing: Tests that pass before, and must pass after.
        hidden: Paths that the agent must not see: removed from its container.
        test_command: What runs the tests, if the row says it; ``{files}`` are those of the tests.
    """

    id: str
    repo: str
    statement: str
    must_pass: tuple[str, ...]
    keep_passing: tuple[str, ...] = ()
    base_commit: str = ""
    image: str = ""
    fix: str = ""
    bug: str = ""
    test_patch: str = ""
    hidden: tuple[str, ...] = ()
    test_command: str = ""

    @classmethod
    def of(cls, task: Task) -> Self:
        """Return the instance that a task was made from.

        Raises:
            ConfigError: If it is not a task of this environment.
        """
        try:
            fields = {"id": task.id, "statement": str(task.prompt), **task.info, **task.answer}
            lists = ("must_pass", "keep_passing", "hidden")
            return cls(**fields | {name: tuple(fields[name]) for name in lists})
        except (TypeError, KeyError) as error:
            raise ConfigError(
                f"task {task.id!r} is not one of the environment swe: {error}"
            ) from None

    def row(self) -> dict[str, Any]:
        """Return it as a row that becomes a task; what an agent must not know is in the answer."""
        shown = ("repo", "base_commit", "image")
        fields = asdict(self)
        return {
            "id": fields.pop("id"),
            "prompt": fields.pop("statement"),
            "info": {name: fields.pop(name) for name in shown},
            "answer": fields,
        }


def instances(
    rows: Iterator[Placed], *, image: str | None, built: bool, patch_is: PatchIs | None
) -> Iterator[Instance]:
    """Yield the instances of rows.

    Args:
        rows: The rows, each with its place.
        image: A template for the names of images; None for the rows' own.
        built: Whether images are built, so that rows need name none.
        patch_is: Whether a row's ``patch`` repairs the repository or breaks it; None to tell by
            the row.

    Raises:
        ConfigError: If a row lacks something, or holds the wrong thing; names its place.
    """
    for where, row in rows:
        try:
            yield _instance(row, image, built, patch_is)
        except (KeyError, ValueError, TypeError) as error:
            problem = error.args[0] if isinstance(error, KeyError) else error
            raise ConfigError(f"{where}: {problem}") from error


def _instance(row: Row, image: str | None, built: bool, patch_is: PatchIs | None) -> Instance:
    commit = _text(row, "commit_hash")
    repo = _text(row, "repo") or _text(row, "repo_name")
    name = _text(row, "instance_id") or (f"{repo}-{commit}" if commit else "")
    if not name:
        raise KeyError(_missing(row, "instance_id"))
    statement = _text(row, "problem_statement")
    if not statement.strip():
        raise KeyError(_missing(row, "problem_statement"))
    issue = _ISSUE.search(statement)
    expected = row.get("expected_output_json")
    must, keep = _names(row, "FAIL_TO_PASS"), _names(row, "PASS_TO_PASS")
    if expected is not None and not must:
        must, keep = _expected(expected), ()
    if not must:
        raise KeyError(_missing(row, "FAIL_TO_PASS"))
    patch = _text(row, "patch") or _committed(row.get("parsed_commit_content"))
    breaks = patch_is == "bug" or (patch_is is None and repo.startswith("swesmith/"))
    return Instance(
        id=name,
        repo=repo,
        statement=issue[1].strip() if issue else statement,
        must_pass=must,
        keep_passing=keep,
        base_commit=_text(row, "base_commit"),
        image="" if built else _image(row, name, image),
        fix="" if breaks else patch,
        bug=patch if breaks else "",
        test_patch=_text(row, "test_patch"),
        hidden=R2E_HIDDEN if expected is not None else (),
        test_command=_command(row) or (R2E_COMMAND if expected is not None else ""),
    )


def _text(row: Row, name: str) -> str:
    value = row.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text, got {type(value).__name__}")
    return value


def _missing(row: Row, name: str) -> str:
    has = [str(key) for key in row if row[key] is not None]
    return f"the field {name!r} is missing.{did_you_mean(name, has)} The row has: {', '.join(has)}"


def _names(row: Row, name: str) -> tuple[str, ...]:
    """Return a list of tests, which may be the text of a list."""
    value: Any = row.get(name, row.get(name.lower()))
    if value is None:
        return ()
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            try:
                value = ast.literal_eval(value)  # as some write it: ['a', 'b']
            except (ValueError, SyntaxError):
                raise ValueError(f"{name} is not a list: {value[:80]!r}") from None
    if not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{name} must be a list of texts, got {value!r:.80}")
    return tuple(dict.fromkeys(value))


def _expected(text: Any) -> tuple[str, ...]:
    """Return the tests that pass after the repair, as R2E-Gym lists them with their results."""
    statuses = json.loads(text) if isinstance(text, str) else text
    if not isinstance(statuses, Mapping):
        raise ValueError("expected_output_json must be an object of test names")
    names = [_COLOUR.sub("", str(name)).split(" - ")[0] for name in statuses]
    return tuple(
        name
        for name, status in zip(names, statuses.values(), strict=True)
        if name and status == "PASSED"
    )


def _committed(text: Any) -> str:
    """Return the patch of R2E-Gym's ``parsed_commit_content``, without its tests."""
    if not text:
        return ""
    commit = json.loads(text) if isinstance(text, str) else text
    parts = []
    for diff in commit.get("file_diffs", ()):
        path = (diff.get("header") or {}).get("file", {}).get("path", "")
        old, new = diff.get("old_file_content"), diff.get("new_file_content")
        if path and path.endswith(".py") and not _is_test(path) and (old or new):
            parts.append(file_patch(path, old, new))
    return "".join(parts)


def _is_test(path: str) -> bool:
    *folders, name = path.lower().split("/")
    in_tests = not {"test", "tests"}.isdisjoint(folders)
    return in_tests or name.startswith("test_") or name.endswith("_test.py")


def file_patch(path: str, old: str | None, new: str | None) -> str:
    """Return the patch that turns one text of a file into another; None where there is no file."""
    head = f"diff --git a/{path} b/{path}\n"
    if old is None:
        head += "new file mode 100644\n"
    if new is None:
        head += "deleted file mode 100644\n"
    before = "/dev/null" if old is None else f"a/{path}"
    after = "/dev/null" if new is None else f"b/{path}"
    lines = difflib.unified_diff(_lines(old or ""), _lines(new or ""), before, after)
    ended = "\n\\ No newline at end of file\n"
    body = [line if line.endswith("\n") else line + ended for line in lines]
    return head + "".join(body) if body else ""


def _lines(text: str) -> list[str]:
    """Return lines as git counts them: it is only a line feed that ends one."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


def _image(row: Row, name: str, template: str | None) -> str:
    if template is not None:
        fields = {str(key): value for key, value in row.items() if isinstance(value, str | int)}
        # Docker Hub takes no two underscores in a row: each publisher has put something there.
        lower = name.lower()
        fields |= {"instance_id": name, "id": lower}
        fields |= {"id_1776": lower.replace("__", "_1776_"), "id_s": lower.replace("__", "_s_")}
        try:
            return template.format_map(fields)
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(f"image = {template!r}: there is nothing for {error}") from None
    for field in _IMAGE_FIELDS:
        if image := _text(row, field).strip():
            return image
    raise KeyError(
        f"the row names no image ({', '.join(_IMAGE_FIELDS)}); give a template, such as "
        'image = "swebench/sweb.eval.x86_64.{id_1776}", or build = a folder of Dockerfiles'
    )


def _command(row: Row) -> str:
    """Return the command that a row gives; SWE-rebench's gets the files of the tests."""
    for name in ("test_command", "test_cmd"):
        if command := _joined(row.get(name)):
            return command
    config = row.get("install_config")
    if isinstance(config, str) and config.strip().startswith("{"):
        config = json.loads(config)
    command = _joined(config.get("test_cmd")) if isinstance(config, Mapping) else ""
    return f"{command} {{files}}" if command else ""


def _joined(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " && ".join(str(line) for line in value)
    return value.strip() if isinstance(value, str) else ""
