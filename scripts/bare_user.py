"""Be a user without extras: `python3 scripts/bare_user.py`; it needs the standard library only.

It builds a wheel of this tree, installs it without extras in an empty environment outside of the
tree, and types there what needs no extra: the README's blocks, every command's help, evaluations
against an API, `vf-rl view`. What needs an extra has to say which, in one line and with exit code
2. Each of the extras named by `--extras` is then installed alone beside that, and used.
There are no programs on the path, no container engine and no browser. Each act is one line of
output; the failures follow at the end. Exit code: 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from extra_acts import ACTS, ASK_FIRST, LIGHT, WANTS

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LISTED = re.compile(r"^ {2,4}([a-z][a-z-]*)(?: {2,}|$)", re.MULTILINE)  # a command in a --help
CAUGHT = "Traceback (most recent call last)"
SECONDS = 300  # for one act
# What the caller's environment would add to a bare user's.
LEFT_OUT = re.compile(r"PYTHON|VIRTUAL_ENV|PYTEST|VF_|OPENAI_|DOCKER_|OMP_|PATH$|HOME$")

NAMES = """
import vf
for name in vf.__all__:
    try:
        getattr(vf, name)
    except vf.ConfigError as error:
        assert "pip install 'vf-rl[" in str(error) and "\\n" not in str(error), error
"""
ENVIRONMENTS = """
from importlib.metadata import entry_points
print(*sorted(entry_points(group="vf.environments").names))
"""


class Failed(Exception):
    """An act did not do what it should; says what it did."""


class FakeApi(BaseHTTPRequestHandler):
    """OpenAI's chat completions: counts in the warehouse of the README, else says a number."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        last = request["messages"][-1]
        message: dict[str, Any] = {"role": "assistant", "content": "Answer: 1"}
        if last["role"] == "tool":
            message["content"] = f"Answer: {last['content']}"
        elif item := re.search(r"item-\d+", str(last["content"])):
            call = {"name": "count", "arguments": json.dumps({"item": item[0]})}
            message["tool_calls"] = [{"id": "call-1", "type": "function", "function": call}]
            message["content"] = None
        reason = "tool_calls" if "tool_calls" in message else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        answer = {"id": "1", "object": "chat.completion", "created": 1, "model": request["model"]}
        body = json.dumps(answer | {"choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def fake_api() -> Iterator[str]:
    """Serve the API, and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeApi)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


class User:
    """Somebody with an environment of their own, in a folder of their own.

    Args:
        folder: Where they work.
        python: The environment's interpreter.
        api: Where the model is.
    """

    def __init__(self, folder: Path, python: Path, api: str) -> None:
        self.folder, self.python, self.api = folder, python, api
        kept = {name: value for name, value in os.environ.items() if not LEFT_OUT.match(name)}
        self.environ = kept | {
            "PATH": str(python.parent),
            "HOME": str(folder),
            "DOCKER_HOST": "unix:///nonexistent.sock",
            "COLUMNS": "100",
            "HF_HUB_OFFLINE": "1",
        }

    def type(self, line: str, code: int = 0, says: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command until it ends, `vf-rl ...` or `python ...`.

        Args:
            line: The command; {api} stands for the API's address.
            code: The exit code that it must have.
            says: What its output must contain.

        Raises:
            Failed: It ended otherwise, or printed a traceback.
        """
        program, *words = shlex.split(line.replace("{api}", self.api))
        module = ["-m", "vf.trainer.commands.main"] if program == "vf-rl" else []
        script = self.python.with_name("vf-rl")
        start = [str(script)] if module and script.exists() else [str(self.python), *module]
        try:
            done = subprocess.run(
                [*start, *words],
                cwd=self.folder,
                env=self.environ,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"`{line}` had not ended after {SECONDS} s") from None
        printed = done.stdout + done.stderr
        if done.returncode != code or CAUGHT in printed or says not in printed:
            wanted = f", and saying {says!r}" if says else ""
            last = "\n".join(printed.splitlines()[-15:])
            raise Failed(f"`{line}` exited {done.returncode}, expected {code}{wanted}:\n{last}")
        return done

    def run(self, code: str, says: str = "") -> str:
        """Run a Python program, and return what it printed."""
        (self.folder / "program.py").write_text(code, encoding="utf-8")
        return self.type("python program.py", says=says).stdout

    def ask(self, line: str, extra: str = "") -> None:
        """Type what this environment cannot do: the answer is one line, and the exit code 2.

        Args:
            line: The command.
            extra: The extra that the line must name.
        """
        says = f"pip install 'vf-rl[{extra}]'" if extra else "vf-rl"
        done = self.type(line, 2, says)
        said = [
            text for text in (done.stdout + done.stderr).splitlines() if ": trying " not in text
        ]
        if len(said) != 1:
            lines = "\n".join(said)
            raise Failed(f"`{line}` answered with {len(said)} lines, not one:\n{lines}")


class Acts:
    """What is done, in turn; failures are kept for the end."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def do(self, name: str, act: Callable[[], object]) -> bool:
        """Do one thing, and print a line about it; returns whether it went well."""
        began = time.monotonic()
        try:
            act()
        except Failed as error:
            self.failures.append(f"{name}: {error}")
        good = not (self.failures and self.failures[-1].startswith(f"{name}: "))
        word = "ok    " if good else "FAILED"
        print(f"{word} {time.monotonic() - began:5.1f} s  {name}", flush=True)
        return good


def call(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run what has to work for anything else to be tried.

    Raises:
        Failed: It did not.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=kept, capture_output=True, text=True)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise Failed(f"`{shlex.join(map(str, command))}` exited {done.returncode}:\n{last}")


def copy_sources(to: Path) -> None:
    """Copy what git knows or would take, so that building leaves nothing in this tree."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, to / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of a page in one language."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [code for kind, code in BLOCK.findall(text) if kind == language]


def install(folder: Path) -> tuple[Path, Path]:
    """Build the wheel and install it in an empty environment; return its interpreter and wheel."""
    copy_sources(folder / "sources")
    venv.create(folder / "bare", with_pip=True)
    python = folder / "bare" / "bin" / "python"
    pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check")
    call(*pip, "wheel", "--no-deps", "-w", folder, folder / "sources", cwd=folder)
    [wheel] = folder.glob("*.whl")
    call(*pip, "install", wheel, cwd=folder)
    return python, wheel


def helps(user: User, name: str) -> list[str]:
    """Check a command's help and those of its own commands; return their names."""
    text = user.type(f"vf-rl {name} --help".replace("  ", " "), says="usage: vf-rl").stdout
    usage = text.partition("\n\n")[0]
    inner = LISTED.findall(text) if not name or usage.endswith("COMMAND ...") else []
    if name:
        for word in inner:
            user.type(f"vf-rl {name} {word} --help", says="usage: vf-rl")
    return inner


def evaluate(user: User, environment: str, folder: str, reward: float | None = None) -> None:
    """Evaluate against the API; look at the result."""
    user.type(f"vf-rl eval {environment} -m any -b {{api}} -n 3 -r 2 -o {folder}", says="reward")
    found = json.loads((user.folder / folder / "results.json").read_text())["results"][0]
    if reward is not None and found["reward"]["mean"] != reward:
        raise Failed(f"the mean reward in {environment} is {found['reward']['mean']}, not {reward}")


def view(user: User) -> None:
    """Show both evaluations as one page, and the traces as text and as a file."""
    user.type("vf-rl view file bundled -o page.html", says="2 evaluations, 12 traces")
    user.type("vf-rl view file --plain", says="item-")
    user.type("vf-rl view file --export best.jsonl --min-reward 1")


def write_files(folder: Path) -> None:
    """Write what the commands read."""
    [toml] = blocks("README.md", "toml")
    (folder / "run.toml").write_text(toml)
    (folder / "sft.toml").write_text('model = "tiny"\n[data]\ntraces = ["best.jsonl"]\n')
    (folder / "texts.jsonl").write_text(
        '{"id": "oslo", "text": "Oslo is the capital of Norway."}\n'
    )
    (folder / "my_env.py").write_text(blocks("README.md", "python")[0])


def be_bare(acts: Acts, user: User) -> None:
    """Do what needs no extra, and ask for what does."""
    acts.do("import vf, and each of its names", lambda: user.run(NAMES))
    programs = blocks("README.md", "python")
    acts.do("README: an environment", lambda: user.run(programs[0]))
    acts.do("README: its rollout", lambda: user.run("\n".join(programs[:2])))
    acts.do("README: all Python blocks", lambda: user.run("\n".join(programs)))
    commands: list[str] = []
    acts.do("vf-rl --help", lambda: commands.extend(helps(user, "")))
    for name in commands:
        acts.do(f"vf-rl {name} --help", partial(helps, user, name))
    acts.do("vf-rl eval ./my_env.py", lambda: evaluate(user, "./my_env.py", "file", 1.0))
    acts.do("vf-rl eval calculator", lambda: evaluate(user, "calculator", "bundled"))
    acts.do("vf-rl eval --validate", lambda: user.type("vf-rl eval --validate ./my_env.py -n 4"))
    acts.do("vf-rl view", lambda: view(user))
    acts.do("vf-rl init", lambda: user.type("vf-rl init my-own"))
    acts.do("vf-rl doctor", lambda: user.type("vf-rl doctor", says="vf-rl[train]"))
    for extra, lines in WANTS.items():
        for line in lines:
            acts.do(f"{line} wants {extra}", partial(user.ask, line, extra))
    refused = [line for lines in WANTS.values() for line in lines]
    for name in user.run(ENVIRONMENTS).split():
        line = f"vf-rl eval {name} -m any -b {{api}} -n 1"
        if name in ASK_FIRST:
            acts.do(f"vf-rl eval {name} asks", partial(user.ask, line))
        elif line not in refused:
            acts.do(f"vf-rl eval {name}", partial(user.type, line, says="reward"))


def use_extra(acts: Acts, bare: User, wheel: Path, extra: str) -> None:
    """Install one extra alone, in an environment that has only the bare one's packages beside."""
    folder = bare.folder.parent / extra
    python = folder / "venv" / "bin" / "python"

    def add() -> None:
        venv.create(folder / "venv")
        [packages] = (folder / "venv").glob("lib/python*/site-packages")
        [shared] = bare.python.parents[1].glob("lib/python*/site-packages")
        (packages / "bare.pth").write_text(f"{shared}\n")
        pip = (bare.python, "-m", "pip", "--python", python, "--quiet")
        pins = ("-c", ROOT / "constraints" / "cpu.txt")
        options = ("--disable-pip-version-check", "--no-compile", *pins)
        call(*pip, "install", *options, f"{wheel}[{extra}]", cwd=folder)

    folder.mkdir()
    if not acts.do(f"pip install 'vf-rl[{extra}]'", add):
        return
    user = User(folder, python, bare.api)
    write_files(folder)
    for act in ACTS[extra]:
        if act.line:
            todo: Callable[[], object] = partial(user.type, act.line, act.code, act.says)
        else:
            todo = partial(user.run, act.program or blocks(act.page, "python")[0], act.says)
        acts.do(f"{extra}: {act.what}", todo)


def main() -> int:
    """Play it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--extras",
        nargs="+",
        default=LIGHT,
        choices=["all", "none", *ACTS],
        metavar="NAME",
        help=f"extras to try alone: all, none, or names (default: {' '.join(LIGHT)})",
    )
    chosen = parser.parse_args().extras
    extras = [each for each in ACTS if each in chosen or "all" in chosen]
    acts, began = Acts(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vf-bare-") as name, fake_api() as api:
        folder = Path(name).resolve()
        installed: list[Path] = []
        if acts.do("pip install vf-rl", lambda: installed.extend(install(folder))):
            python, wheel = installed
            (folder / "work").mkdir()
            user = User(folder / "work", python, api)
            write_files(user.folder)
            be_bare(acts, user)
            for extra in extras:
                use_extra(acts, user, wheel, extra)
    for failure in acts.failures:
        print(f"\n{failure}")
    print(f"\n{len(acts.failures)} failures, {time.monotonic() - began:.0f} s")
    return 1 if acts.failures else 0


if __name__ == "__main__":
    sys.exit(main())
