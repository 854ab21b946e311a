"""The persistent shell: its state, and what commands can do to it."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from tests.sandbox.local_box import boxes, inside, mark, running
from tests.waiting import until
from vf.sandbox.contract import ExecResult
from vf.sandbox.local import UnsafeLocalSandbox

LOST = "its state is lost"
MARK = mark(40)


def run(*commands: str, timeout: float = 30.0) -> list[ExecResult]:
    """Run one command after the other in one shell."""

    async def body(box: UnsafeLocalSandbox) -> list[ExecResult]:
        return [await box.bash(command, timeout=timeout) for command in commands]

    return inside(body)


def test_directory_variables_functions_options_and_descriptors_live_on() -> None:
    results = run(
        "mkdir -p 'a b' && cd 'a b'; x=1; export y=2; declare -A m=([k]=3); f() { echo f$1; }",
        "alias q='echo q'; shopt -s nullglob; exec 3>log",
        'echo "${PWD##*/} $x $(printenv y) ${m[k]} $(f 4)"; echo logged >&3',
        "shopt nullglob; cat log",
    )
    assert results[2].stdout == "a b 1 2 3 f4\n"
    assert results[3].stdout == "nullglob       \ton\nlogged\n"
    assert all(r.ok and r.stderr == "" for r in results)


def test_odd_commands_leave_a_shell_that_works() -> None:
    commands = [
        "break",
        "continue",
        "for i in 1 2; do",
        "echo 'unterminated",
        "cat <<EOF\nno end",
        "}",
        "set -x; echo traced; set +x",
        "trap 'echo trapped' ERR; false; trap - ERR",
        "echo() { builtin echo mine; }; read() { :; }; trap() { :; }; return() { :; }",
        "unset PATH HOME PWD IFS",
        "IFS=0123456789",
        "exec 3>&- 4>&- 5>&- 10>&-",
        "exec </dev/null",
        "set -o posix",
        "set -f -u -C",
        "wait",
        "(exit 3) | true",
        "exec 2>&1",
        "PS4='x' BASH_XTRACEFD=1",
        "readonly x=1; x=2",
    ]

    async def body(box: UnsafeLocalSandbox) -> None:
        for command in commands:
            await box.bash("kept=1")
            result = await box.bash(command + "\n")
            assert not result.timed_out, command
            assert LOST not in result.stderr, command
            assert (await box.bash('builtin echo "$kept" fine')).stdout == "1 fine\n", command
            await box.bash("builtin exit")  # the next command gets a shell of its own

    inside(body)


def test_a_shell_that_ends_is_reported_as_lost_and_replaced() -> None:
    ends = {
        "set -e; false; echo no": 1,
        "set -u; echo $nothing_of_that_name": 1,
        "exec echo x": 0,
        "kill -9 $$": 137,
        "trap 'echo x' EXIT; exit": 0,
        "kill -HUP $$": 129,
    }
    calls = [text for end in ends for text in (f"kept=1; echo x; {end}", "echo $kept fine")]
    results = run(*calls)
    for end, result, after in zip(ends, results[::2], results[1::2], strict=True):
        assert (result.returncode, result.stdout[:2]) == (ends[end], "x\n"), end
        assert LOST in result.stderr, end
        assert (after.stdout, after.stderr) == ("fine\n", ""), end


HANGING = [
    "sleep MARK",
    "while :; do :; done",
    "f() { while :; do sleep 0.01; done; echo no; }; f",
    "for i in 1 2 3; do sleep MARK; done",
    "sleep MARK | cat",
    "x=$(sleep MARK)",
    "(sleep MARK; echo no)",
    "setsid sleep MARK & wait",
    "(setsid bash -c 'trap \"\" TERM INT HUP; sleep MARK' &) ; sleep MARK",
    "read < <(sleep MARK)",
    "trap '' INT TERM HUP; sleep MARK; sleep MARK",
    "mkfifo p; cat p",
]


async def test_on_timeout_the_rest_is_skipped_and_the_state_kept() -> None:
    async def stops(box: UnsafeLocalSandbox, number: int, command: str) -> None:
        lasting = command.replace("MARK", mark(number))
        result = await box.bash(f"echo partial; {lasting}; echo no; echo no", timeout=0.5)
        assert (result.timed_out, result.returncode) == (True, 130), command
        assert result.stdout == "partial\n", command
        assert LOST not in result.stderr, command
        assert running(mark(number)) == [], command
        after = await box.bash("echo $kept; f() { echo whole; echo f; }; f")
        assert (after.stdout, after.returncode) == ("1\nwhole\nf\n", 0), command

    async with boxes(len(HANGING)) as opened:
        await asyncio.gather(*(box.bash("kept=1") for box in opened))
        cases = zip(opened, count(40), HANGING, strict=False)
        await asyncio.gather(*(stops(*case) for case in cases))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["kill -STOP $$", "trap '' USR1; while :; do :; done"])
def test_a_shell_that_does_not_stop_is_killed_and_reported_as_lost(command: str) -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        await box.bash("kept=1")
        result = await box.bash(f"echo partial; {command}", timeout=0.5)
        assert (result.timed_out, result.returncode, result.stdout) == (True, 137, "partial\n")
        assert LOST in result.stderr
        assert (await box.bash("echo $kept fine")).stdout == "fine\n"

    inside(body)


def test_what_was_in_the_background_before_survives_a_timeout() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        before, during = mark(41), mark(42)
        await box.bash(f"sleep {before} & echo started")
        await until(lambda: running(f"sleep\0{before}"))
        assert (await box.bash(f"sleep {during}", timeout=0.3)).timed_out
        assert len(running(f"sleep\0{before}")) == 1
        assert running(f"sleep\0{during}") == []
        assert (await box.bash("kill %1; wait %1; echo $?")).stdout == "143\n"

    inside(body)


def test_what_was_started_a_moment_before_the_call_survives_a_timeout() -> None:
    """In the same clock tick, most often: the kernel's times alone do not tell them apart."""

    async def body(box: UnsafeLocalSandbox) -> None:
        for _ in range(5):
            await box.bash(f"sleep {mark(43)} &")
            assert (await box.bash(f"sleep {mark(44)}", timeout=0.05)).timed_out
        assert (await box.bash("jobs -pr | wc -l")).stdout.strip() == "5"

    inside(body)


def test_background_output_comes_with_the_next_call() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        later = "until [ -e go ]; do sleep 0.01; done; echo late; touch said"
        assert (await box.bash(f"({later}) & echo now")).stdout == "now\n"
        assert (await box.exec("touch go; until [ -e said ]; do sleep 0.01; done")).ok
        assert (await box.bash("echo next")).stdout == "late\nnext\n"

    inside(body)


def test_a_forged_answer_fools_only_the_one_who_forges() -> None:
    results = run(
        "echo '1 0' >/proc/$$/fd/101; echo '2 0' >/proc/$$/fd/101; (exit 5)", "(exit 6)", "(exit 7)"
    )
    assert [r.returncode for r in results[1:]] == [6, 7]


def test_python_and_bash_run_at_the_same_time_in_one_place() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        # Each waits for a file that the other writes.
        code = "import os\nopen('one', 'w')\nwhile not os.path.exists('two'): pass\n'seen'"
        line = "until [ -e one ]; do :; done; touch two; echo seen"
        seen = await asyncio.gather(box.python(code), box.bash(line))
        assert [result.stdout for result in seen] == ["'seen'\n", "seen\n"]

    inside(body)


def test_an_answer_given_in_advance_is_none() -> None:
    forge = '(while :; do for n in $(seq 50); do echo "$n 0"; done; done >/proc/$$/fd/101) &'
    *_, result = run(forge, "true", "sleep 0.3; echo whole; (exit 9)")
    assert (result.stdout, result.returncode) == ("whole\n", 9)
