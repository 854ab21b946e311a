"""The unprotected sandbox: nobody gets it by accident, and nothing of it stays behind."""

from __future__ import annotations

import asyncio
import inspect
import marshal
import os
import signal
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sandbox.local_box import inside, mark, running
from tests.waiting import until, wait_until
from vf.runtime.errors import ConfigError, SandboxError
from vf.sandbox.boot import MODULES, boot
from vf.sandbox.contract import Limits
from vf.sandbox.local import UnsafeLocalSandbox
from vf.sandbox.supervisor import kind_of_python

MARK = mark(20)


@pytest.mark.parametrize("value", [False, None, 1, "yes"])
def test_it_must_be_asked_for_by_name(value: object) -> None:
    with pytest.raises(ConfigError, match=r"without any protection.*open_sandbox.*unsafe_local"):
        UnsafeLocalSandbox(unsafe_local=value)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        UnsafeLocalSandbox()


def test_code_finds_a_place_of_its_own_and_nothing_of_our_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_API_KEY", "sk-very-secret")

    async def body(box: UnsafeLocalSandbox) -> list[str]:
        said = [(await box.exec("pwd; echo $HOME; ls -A; env")).stdout]
        said.append((await box.bash("pwd; echo $HOME; ls -A; env")).stdout)
        code = "import os; print(os.getcwd(), os.path.expanduser('~'), os.listdir(), *os.environ)"
        said.append((await box.python(code)).stdout)
        said += [(await box.read_file("/proc/self/environ")).decode()]
        return said

    said = inside(body)
    assert "SECRET" not in "".join(said)
    assert said[0].splitlines()[0] == said[0].splitlines()[1] == said[1].splitlines()[0]
    assert "vf-unsafe-local-" in said[0]


def test_everything_is_killed_and_removed_at_the_end() -> None:
    async def body(box: UnsafeLocalSandbox) -> Path:
        await box.exec(f"setsid sleep {MARK} & (setsid sh -c 'sleep {MARK} &' &)")
        await box.bash(f"sleep {MARK} & disown")
        await box.python(f"import subprocess; p = subprocess.Popen(['sleep', '{MARK}'])")
        await until(lambda: len(running(f"sleep\0{MARK}")) == 4)
        await box.exec("mkdir -p a/b; touch a/b/c; chmod 0 a/b; chmod 0 a; ln -s / link")
        return Path((await box.exec("pwd")).stdout.strip())

    workdir = inside(body)
    assert running(f"sleep\0{MARK}") == []
    assert not workdir.parent.exists()


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("x")
    tmp_path.chmod(0o755)

    async def body(box: UnsafeLocalSandbox) -> None:
        await box.exec(["ln", "-s", str(tmp_path), "link"])

    inside(body)
    assert (tmp_path / "kept").read_text() == "x"
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_it_is_started_once_and_of_no_use_before_and_after() -> None:
    async def run() -> None:
        box = UnsafeLocalSandbox(unsafe_local=True)
        with pytest.raises(SandboxError, match="not started"):
            await box.exec("true")
        assert await box.open() is box
        assert box.alive
        with pytest.raises(ValueError, match="started before"):
            await box.open()
        waiting = asyncio.create_task(box.exec(f"sleep {MARK}"))
        await until(lambda: running(f"sleep\0{MARK}"))
        await asyncio.gather(box.close(), box.close())
        await box.close()
        with pytest.raises(SandboxError, match="closed"):
            await waiting
        with pytest.raises(SandboxError, match="closed"):
            await box.python("1")
        assert not box.alive
        await UnsafeLocalSandbox(unsafe_local=True).close()

    asyncio.run(run())


@pytest.mark.parametrize("pause", [0, 0.001, 0.01, 0.03, 0.1])
def test_a_cancelled_start_leaves_nothing(
    pause: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def run() -> None:
        start = asyncio.create_task(UnsafeLocalSandbox(unsafe_local=True).open())
        await asyncio.sleep(pause)
        start.cancel()
        try:
            box = await start
        except asyncio.CancelledError:
            return
        await box.close()

    asyncio.run(run())
    wait_until(lambda: list(tmp_path.iterdir()) == [] and not running(str(tmp_path)))


def test_one_that_cannot_start_is_a_sandbox_error_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def run() -> None:
        monkeypatch.setattr(sys, "executable", "/no/such/python")
        with pytest.raises(SandboxError, match="did not start"):
            await UnsafeLocalSandbox(unsafe_local=True).open()
        monkeypatch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(SandboxError, match=r"supervisor ended|could not be sent"):
            await UnsafeLocalSandbox(unsafe_local=True).open()

    asyncio.run(run())
    assert list(tmp_path.iterdir()) == []


PARENT = f"""
import asyncio, sys
from vf.sandbox.local import UnsafeLocalSandbox
from vf.sandbox.supervisor import kind_of_python

async def main():
    box = await UnsafeLocalSandbox(unsafe_local=True).open()
    await box.exec("setsid sleep {MARK} &")
    print((await box.exec("pwd")).stdout.strip(), flush=True)
    await box.python("import subprocess; subprocess.run(['sleep', '{MARK}'])", timeout=60)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_the_process_that_owns_it(number: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout is not None
        workdir = Path(parent.stdout.readline().strip())
        assert workdir.is_dir()
        wait_until(lambda: len(running(f"sleep\0{MARK}")) == 2)
        parent.send_signal(number)
        parent.wait(60)
    wait_until(lambda: not running(f"sleep\0{MARK}"))
    wait_until(lambda: not workdir.parent.exists())


def test_two_know_nothing_of_each_other() -> None:
    async def run() -> None:
        one, two = (UnsafeLocalSandbox(unsafe_local=True) for _ in range(2))
        async with one, two:
            await asyncio.gather(one.write_file("f", "1"), two.write_file("f", "2"))
            assert await one.read_file("f") == b"1"
            await one.close()
            assert (await two.exec("cat f")).stdout == "2"

    asyncio.run(run())


def test_its_limits_hold() -> None:
    async def run() -> None:
        mib = 2**20
        limits = Limits(memory=200 * mib, workspace=5 * mib, tmp=5 * mib)
        async with UnsafeLocalSandbox(unsafe_local=True, limits=limits) as box:
            memory = await box.python(f"x = bytearray({300 * mib})")
            assert "MemoryError" in memory.stderr
            disk = await box.exec(f"head -c {6 * mib} /dev/zero > f")
            assert not disk.ok
            with pytest.raises(OSError, match="File too large"):
                await box.write_file("g", b"x" * 6 * mib)
            assert (await box.exec("ulimit -c")).stdout == "0\n"
        async with UnsafeLocalSandbox(
            unsafe_local=True, limits=replace(limits, lifetime=1.0)
        ) as box:
            result = await box.exec(f"sleep {MARK}")
            assert result.ended
            assert "its lifetime is over" in result.stderr
            await until(lambda: running(f"sleep\0{MARK}") == [])

    asyncio.run(run())


def test_another_user_cannot_be_had() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        with pytest.raises(ValueError, match="as another user"):
            await box.exec("id", user="1" if os.getuid() != 1 else "2")

    inside(body)


def test_every_module_that_is_sent_is_there() -> None:
    folder = Path(inspect.getfile(UnsafeLocalSandbox)).parent
    # These run in processes of their own.
    apart = {"inside/__init__.py", "inside/interpreter.py", "inside/collect.py"}
    there = {f"inside/{path.name}" for path in (folder / "inside").glob("*.py")} - apart
    assert {file for _, file in MODULES if file} == there | {"frames.py", "ends.py", "folder.py"}
    kind, modules = marshal.loads(boot()[4:])
    assert kind == kind_of_python()
    sent = {name: source for name, source, _ in modules}
    for name, file in MODULES:
        assert sent[name] == (file and (folder / file).read_text("utf-8"))


@pytest.mark.parametrize("kind", [kind_of_python(), "another Python's"])
def test_code_of_another_kind_of_python_is_compiled_there(kind: str) -> None:
    source = "answer = 42"
    code = marshal.dumps(compile("answer = 43", "<it>", "exec"))
    sent = marshal.dumps((kind, [("package", None, None), ("package.it", source, code)]))
    run = "from vf.sandbox.supervisor import load; load(); from package import it; print(it.answer)"
    done = subprocess.run(
        [sys.executable, "-c", run],
        input=struct.pack(">I", len(sent)) + sent,
        capture_output=True,
        check=True,
    )
    assert done.stdout == (b"43\n" if kind == kind_of_python() else b"42\n")
