"""What is refused, and what ends, before torch is there: importing it takes seconds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")  # what checks whether it is installed must find it

TOML = """
model = "tiny"
[env]
id = "calculator"
"""
SFT = """
model = "tiny"
[data]
traces = ["nope"]
"""
# Each with words of its refusal.
REFUSED = {
    "eval nope -m tiny": "no environment 'nope'",
    'eval calculator -m tiny --args {"max_operation":3}': "no argument 'max_operation'",
    "eval calculator -m ./nope": "no such folder",
    "eval calculator -m tiny --tokenizer ./nope": "no such folder",
    "eval calculator -m tiny --chat-template nope": "chat_template = 'nope'",
    "eval --validate nope": "no environment 'nope'",
    "eval --rescore nope --rubric calculator": "nope",
    "eval --compare nope nope": "no traces in nope",
    "run.toml --set env.id=nope": "no environment 'nope'",
    "run.toml --set env.args={max_stps=3}": "no argument 'max_stps'",
    "run.toml --set env.curriculum=nope": "env.curriculum = 'nope'",
    "run.toml --set model=./nope": "no such folder",
    "run.toml --set inference.chat_template=nope": "chat_template = 'nope'",
    "run.toml --set loss_fn=custom --set import_path=nope.py:x": "there is no file",
    "run.toml --set report_to=['nope']": "report_to",
    "--resume nope": "no folder nope",
    "export nope": "no folder nope",
    "serve ./nope": "no such folder",
    "serve tiny --checkpoint last": "--checkpoint",
    "serve tiny --port 0 --tokenizer ./nope": "no such folder",
    "serve tiny --port 0 --chat-template nope": "chat_template = 'nope'",
    "serve tiny --port 0 --max-requests 0": "max_requests = 0",
    "serve ": "it is empty",
    "serve run.toml": "run.toml is a file",
    "serve tiny --port 0 --host ": "inference.host = ''",
    "export ": "must be a path, and is empty",
    "mismatch .": "not the folder of a run",
    "mismatch nope": "no folder nope",
    "mismatch run.toml --set env.id=nope": "no environment 'nope'",
    "sft sft.toml": "nope",
    "sft sft.toml --set model=./nope": "no such folder",
    "check-template ./nope": "no such folder",
    "check-template tiny --chat-template nope": "chat_template = 'nope'",
}
RUN_ALL = """
import contextlib, io, json, sys
from vf.trainer.commands.main import main
ended = {}
for argv in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            code = main(argv.split(" "))
        except SystemExit as ended_by:
            code = ended_by.code
        except BaseException as error:
            code = repr(error)
    ended[argv] = [code, err.getvalue()]
print(json.dumps(ended))
"""


def beside(package: str, code: str, folder: Path) -> dict[str, str]:
    """Return the environment of a process in which a package is this code."""
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text(code)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int | str, str]]:
    """How each of the commands ended, in a process where importing torch fails."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "run.toml").write_text(TOML)
    (folder / "sft.toml").write_text(SFT)
    no_torch = beside("torch", "raise SystemError('torch was imported')", folder)
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        input=json.dumps(list(REFUSED)),
        capture_output=True,
        text=True,
        cwd=folder,
        env=no_torch,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, tuple[int | str, str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("argv", REFUSED)
def test_a_wrong_name_is_refused_without_torch(
    argv: str, ended: dict[str, tuple[int | str, str]]
) -> None:
    code, said = ended[argv]
    assert code == 2, said
    assert REFUSED[argv] in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("argv", ["eval calculator -m tiny", "serve tiny --port 0", "run.toml"])
def test_a_signal_during_the_imports_ends_at_once(
    argv: str, number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "run.toml").write_text(TOML)
    never = "import threading\nprint('importing', flush=True)\nthreading.Event().wait()"
    process = subprocess.Popen(
        [sys.executable, "-m", "vf.trainer.commands.main", *argv.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=beside("transformers", never, tmp_path),
    )
    assert process.stdout is not None
    assert "importing\n" in process.stdout  # a slow machine says before what it waits for
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    said = "interrupted" if number == signal.SIGINT else "stopped by SIGTERM"
    assert err.splitlines()[-1].partition(": ")[2].startswith(said)
