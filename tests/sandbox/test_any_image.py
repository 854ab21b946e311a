"""The supervisor enters any image: one with nothing in it, and one that is against it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping

import pytest

from tests.sandbox.tiny_image import busybox, make_image
from vf.sandbox.container.docker_engine import Engine, ImageUnfit
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.doctor import prepare
from vf.sandbox.container.hardening import Profile
from vf.sandbox.contract import Limits

MIB = 2**20
LIMITS = Limits(memory=192 * MIB, workspace=32 * MIB, tmp=16 * MIB, disk=64 * MIB, lifetime=300)
NAME = "vf-test-root"

Enter = Callable[[Profile, Callable[[DockerSandbox], Awaitable[None]]], None]


@pytest.fixture
def enter(engine: Engine) -> Enter:
    """Open a sandbox from a profile and do something in it."""

    async def run(profile: Profile, body: Callable[[DockerSandbox], Awaitable[None]]) -> None:
        async with await DockerSandbox.create(engine, prepare(engine, profile)) as sandbox:
            await body(sandbox)

    return lambda profile, body: asyncio.run(run(profile, body))


def image_of(
    engine: Engine, name: str, more: Mapping[str, str | bytes], *changes: str
) -> Iterator[str]:
    files, links = busybox()
    files |= more
    links = {path: target for path, target in links.items() if path not in files}
    yield make_image(engine, f"{NAME}-{name}:1", files, links=links, changes=changes)
    engine.call_now("remove_image", f"{NAME}-{name}:1", force=True)


@pytest.fixture(scope="module")
def empty(containers: None) -> Iterator[str]:
    """An image without a single program."""
    engine = Engine.connect()
    yield make_image(engine, f"{NAME}-empty:1", {"README": "nothing"})
    engine.call_now("remove_image", f"{NAME}-empty:1", force=True)
    engine.close()


@pytest.fixture(scope="module")
def small(containers: None) -> Iterator[str]:
    """An image with a shell, without Python and C library, that sets what a Dockerfile can."""
    engine = Engine.connect()
    yield from image_of(
        engine,
        "small",
        {"opt/bin/hello": "#!/bin/sh\necho $GREETING from $0\n"},
        "USER app",
        "WORKDIR /home/app/work",
        "ENV PATH=/opt/bin:/bin GREETING=hi",
        # None of these may reach the supervisor.
        "ENV LD_PRELOAD=/no/such.so LD_LIBRARY_PATH=/lib PYTHONHOME=/none LC_ALL=xx_YY",
    )
    engine.close()


@pytest.fixture(scope="module")
def hostile(containers: None) -> Iterator[str]:
    """An image whose Python and whose settings of the C library are a trap."""
    engine = Engine.connect()
    trap = "#!/bin/sh\necho trapped >&2\nexit 3\n"
    more: dict[str, str | bytes] = {
        "bin/python3": trap,
        "etc/ld.so.preload": "/evil.so\n",
        "etc/nsswitch.conf": "passwd: evil\n",
        "lib/libnss_evil.so.2": b"\x7fELF",
        "usr/lib/python3.11/os.py": "1/0",
    }
    yield from image_of(engine, "hostile", more)
    engine.close()


@pytest.mark.parametrize("writable", [False, True])
def test_an_image_with_nothing_in_it_has_files_and_says_what_is_missing(
    enter: Enter, empty: str, writable: bool
) -> None:
    async def body(sandbox: DockerSandbox) -> None:
        assert await sandbox.read_file("/README") == b"nothing"
        await sandbox.write_file("a/b", "x")
        assert await sandbox.read_file("a/b") == b"x"
        result = await sandbox.exec("echo hi")
        assert (result.returncode, "/bin/sh: No such file" in result.stderr) == (127, True)
        result = await sandbox.exec(["ls"])
        assert (result.returncode, "ls: No such file" in result.stderr) == (127, True)
        for _ in range(2):
            result = await sandbox.bash("echo hi")
            assert result.returncode == 127
            assert "the image has nothing that can be the shell: sh" in result.stderr
            result = await sandbox.python("1")
            assert result.returncode == 127
            assert "the image has nothing that can be the interpreter: python3" in result.stderr

    enter(Profile(empty, LIMITS, writable=writable), body)


def test_a_writable_root_has_the_image_s_user_directory_and_variables(
    enter: Enter, small: str
) -> None:
    async def body(sandbox: DockerSandbox) -> None:
        shown = await sandbox.exec("id -u; id -g; id -G; pwd; echo $HOME; echo $LD_PRELOAD; hello")
        said = (
            "1234\n1234\n1234 77\n/home/app/work\n/home/app\n/no/such.so\nhi from /opt/bin/hello\n"
        )
        assert shown.stdout == said
        assert "USER=" not in (await sandbox.exec("env")).stdout
        await sandbox.write_file("/tmp/f", "x")
        with pytest.raises(PermissionError):
            await sandbox.write_file("/etc/passwd", "mine::0:0:::\n")
        result = await sandbox.exec(
            "id -u; echo $HOME; echo x >>/etc/motd; cat /etc/motd", user="root"
        )
        assert result.stdout == "0\n/root\nx\n"
        assert (await sandbox.exec("id -G", user="app:tools")).stdout == "77\n"
        assert (await sandbox.exec("id -u; id -g", user="4321")).stdout == "4321\n0\n"
        with pytest.raises(ValueError, match="no user 'nobody'"):
            await sandbox.exec("id", user="nobody")
        assert sandbox._stream.stderr == ""

    enter(Profile(small, LIMITS, writable=True), body)


def test_a_read_only_root_has_a_user_of_its_own(enter: Enter, small: str) -> None:
    async def body(sandbox: DockerSandbox) -> None:
        shown = await sandbox.exec(
            "pwd; echo $HOME $USER $GREETING $MORE; touch f; hello; touch /f"
        )
        said = "/workspace\n/workspace sandbox hi there\nhi from /opt/bin/hello\n"
        assert (shown.returncode, shown.stdout) == (1, said)
        assert (await sandbox.exec("id -u")).stdout not in ("0\n", "1234\n")

    enter(Profile(small, LIMITS, env={"MORE": "there"}), body)


def test_user_directory_and_variables_can_be_given(enter: Enter, small: str) -> None:
    async def body(sandbox: DockerSandbox) -> None:
        shown = await sandbox.exec("id -u; pwd; echo $GREETING $HOME $PATH; touch f && ls")
        assert shown.stdout == "0\n/app\nyo /there /bin\nf\n"

    env = {"GREETING": "yo", "HOME": "/there", "PATH": "/bin"}
    for writable in (False, True):
        given = {"user": "root", "workdir": "/app", "env": env, "writable": writable}
        enter(Profile(small, LIMITS, **given), body)  # type: ignore[arg-type]
    with pytest.raises(ImageUnfit, match="no user 'nobody'"):
        enter(Profile(small, LIMITS, user="nobody"), body)


def test_any_shell_lives_on_between_calls(enter: Enter, small: str) -> None:
    async def body(sandbox: DockerSandbox) -> None:
        await sandbox.bash("cd /tmp; x=1; f() { echo $x $PWD $?; }; false")
        assert (await sandbox.bash("f")).stdout == "1 /tmp 1\n"
        assert (await sandbox.bash("exit 5")).returncode == 5
        assert (await sandbox.bash("pwd; cat; echo e >&2; (exit 3)")).returncode == 3
        result = await sandbox.bash("sleep 60", timeout=0.2)
        assert result.timed_out
        assert "its state is lost" in result.stderr
        assert (await sandbox.bash("pwd")).stdout == "/home/app/work\n"

    enter(Profile(small, LIMITS, writable=True), body)


@pytest.mark.parametrize("writable", [False, True])
def test_a_hostile_image_does_not_reach_the_supervisor(
    enter: Enter, hostile: str, writable: bool
) -> None:
    async def body(sandbox: DockerSandbox) -> None:
        assert (await sandbox.exec("echo hi")).stdout == "hi\n"
        result = await sandbox.python("1")
        assert (result.returncode, "trapped" in result.stderr) == (3, True)
        assert (await sandbox.exec("id -u", user="app", cwd="/")).stdout == "1234\n"
        assert sandbox._stream.stderr == ""

    enter(Profile(hostile, LIMITS, writable=writable), body)
