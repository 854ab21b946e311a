"""The command that runs a repository's tests, and how its results are reported."""

from __future__ import annotations

import posixpath
import re
import shlex
from typing import Literal

from vf.bridges.swe.patches import touched
from vf.bridges.swe.rows import Instance

Reading = Literal["report", "output"]

PYTEST = "pytest -rA {files}"
# As SWE-bench runs them (swebench/harness/constants/python.py). Sphinx runs pytest through tox,
# which passes no variables on; without it the tests and their names are the same.
_COMMANDS = {
    "astropy/astropy": "pytest -rA -vv -o console_output_style=classic --tb=no {files}",
    "django/django": (
        "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 {modules}"
    ),
    "mwaskom/seaborn": "pytest --no-header -rA {files}",
    "sympy/sympy": (
        "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose {files}"
    ),
}
# The environment of SWE-bench's images, and of those made like them; others have none.
ACTIVATE = (
    "if [ -f /opt/miniconda3/bin/activate ]; then . /opt/miniconda3/bin/activate && "
    "conda activate testbed; fi"
)
_REPORTING = re.compile(r"\b(pytest|py\.test|unittest|runtests\.py|manage\.py|run_tests\.sh)(?!\w)")
_NOT_CODE = (
    *(".json", ".png", ".csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml"),
    *(".rst", ".cfg", ".ini", ".xml", ".html", ".fits", ".hdr", ".dat", ".in", ".po", ".mo"),
)


def command_of(instance: Instance, given: str | None) -> str:
    """Return the line for the shell that runs an instance's tests.

    Args:
        instance: The row, in one form.
        given: The line of the settings, which goes before the row's.
    """
    line = given or instance.test_command or _COMMANDS.get(instance.repo, PYTEST)
    files = [path for path in test_files(instance) if not path.endswith(_NOT_CODE)]
    # Names of files come from a patch: what is not quoted would be a command.
    line = line.replace("{files}", shlex.join(files))
    return line.replace("{modules}", shlex.join(_modules(files)))


def reading_of(command: str) -> Reading:
    """Return whether a command's tests can report their results, or must print them.

    Decided by the command alone: nothing that runs can choose the weaker way.
    """
    return "report" if _REPORTING.search(command) else "output"


def test_files(instance: Instance) -> list[str]:
    """Return the files that hold an instance's tests."""
    if instance.test_patch:
        return touched(instance.test_patch)
    names = [*instance.must_pass, *instance.keep_passing]
    return sorted({name.split("::")[0] for name in names if "::" in name})


def _modules(files: list[str]) -> list[str]:
    """Return files as Django's runner needs them: modules, relative to its folder of tests."""
    modules = []
    for path in files:
        name = posixpath.basename(path)
        if path.endswith(".py") and (
            name == "tests.py" or name.startswith("test_") or "/tests/" in path or "/test_" in path
        ):
            modules.append(path.removesuffix(".py").removeprefix("tests/").replace("/", "."))
    return modules
