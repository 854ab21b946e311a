"""The dashboard on a real pseudo-terminal, read back by an emulator."""

from __future__ import annotations

import os
import signal
import sys
import termios
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.trainer.watching.conftest import Terminal

    Make = Callable[..., Terminal]

LONG = "a note that is far too long for one line, " * 8 + "and has an end"


def begin(terminal: Terminal, *orders: str) -> Terminal:
    terminal.run()
    terminal.tell("display.start(0, 10)", *orders)
    assert terminal.sees("step 0/10"), terminal.text
    return terminal


def test_all_parts_are_there(terminal: Make) -> None:
    screen = begin(terminal(80, 24))
    screen.tell(
        "display.evaluation(0, {'eval/reward/mean': 0.1})",
        *(f"step({n}, {n / 10}, entropy=1.25, grad_norm=0.5)" for n in (1, 2, 3)),
        "display.note('look here')",
        "display.phase('train'); display.rollouts(3, 4)",
    )
    assert screen.sees("step 3/10", "30%", "left", "train", "3/4 rollouts"), screen.text
    assert screen.sees("generate 75%", "train 25%", "4.0 s a step, last 3"), screen.text
    assert screen.sees("loss +0.2500", "entropy 1.250", "grad norm 0.500"), screen.text
    assert screen.sees("training 0.300", "held out 0.100", "0.30 ┤", "◆"), screen.text
    assert screen.sees("! look here"), screen.text
    curve = [row for row in screen.text.splitlines() if "│" in row or "┤" in row]
    assert len(curve) >= 6
    # It rises: what is drawn in the right half is above what is drawn in the left half.
    drawn = [(i, j) for i, row in enumerate(curve) for j, c in enumerate(row) if "⠀" < c <= "⣿"]
    left = [i for i, j in drawn if j < 40]
    right = [i for i, j in drawn if j >= 40]
    assert sum(right) / len(right) < sum(left) / len(left)
    bar = next(i for i, row in enumerate(screen.text.splitlines()) if "█" * 20 in row)
    colours = [screen.screen.buffer[bar][column].fg for column in range(80)]
    assert colours == ["blue"] * 60 + ["green"] * 20


def test_it_fits_a_small_screen_and_follows_its_size(terminal: Make) -> None:
    screen = begin(
        terminal(60, 15), "display.note('look here')", "display.trace(trace('t-1', 'x'))"
    )
    screen.tell(*(f"step({n}, {n / 10})" for n in (1, 2, 3)))
    assert screen.sees("step 3/10", "0.30 ┤", "generate 75%", "Ctrl-C"), screen.text
    assert "t-1" not in screen.text  # no room
    screen.resize(150, 40)
    assert screen.sees("t-1", "── numbers", "── samples"), screen.text
    assert len(screen.text.splitlines()[2]) > 140
    screen.resize(60, 15)
    assert screen.sees("s show samples")
    assert screen.until(lambda: "t-1" not in screen.text)
    assert screen.text.count("step 3/10") == 1
    screen.resize(9, 3)
    assert screen.until(lambda: screen.text.startswith("step 3/1…")), screen.text


def test_keys_go_through_the_newest_rollouts(terminal: Make) -> None:
    screen = begin(terminal(60, 20))
    screen.tell(*(f"display.trace(trace('t-{n}', 'said {n}'))" for n in range(60)), "step(1, 0.5)")
    assert screen.sees("step 1/10")
    screen.press("s")
    assert screen.sees("t-59: reward 0.50", "said 59", "rollout 60, the newest"), screen.text
    for key, task in (("\x1b[D", "t-58"), ("h", "t-57"), ("p", "t-56"), ("\x1bOC", "t-57")):
        screen.press(key)
        assert screen.sees(f"{task}:"), (key, screen.text)
    screen.press("n")
    assert screen.sees("t-58:", "1 newer")
    screen.press("h" * 100)
    assert screen.sees("t-10:", "49 newer"), "the oldest of the newest 50"
    screen.tell("display.trace(trace('t-60', 'new'))", "step(2, 0.5)")
    assert screen.sees("step 2/10", "t-10:", "50 newer"), "it stays, as the user went there"
    screen.press("l" * 100)
    assert screen.sees("t-60:", "the newest")
    screen.press("s")
    assert screen.sees("0.50 ┤", "s show samples")
    assert "t-60" not in screen.text


def test_a_long_conversation_scrolls(terminal: Make) -> None:
    screen = begin(terminal(60, 20))
    screen.tell("display.trace(trace('t', '\\n'.join(f'line {n};' for n in range(100))))")
    screen.press("s")
    assert screen.sees("line 0;", "↓ rollout 1")
    assert "↑" not in screen.text.splitlines()[2]
    screen.press("\x1b[B" * 5)
    assert screen.sees("line 10;", "↑↓ rollout 1")
    assert "line 0;" not in screen.text
    screen.press("\x1b[A" * 50)
    assert screen.sees("line 0;")
    screen.press("\x1b[6~" * 30)
    assert screen.sees("line 99;")
    assert "↓" not in screen.text.splitlines()[2]


def test_text_of_rollouts_commands_nothing(terminal: Make) -> None:
    screen = begin(terminal(100, 36))
    hostile = r"\x1b]0;pwned\x07 \x1b[2J \x9b31m \x1b[?1049l [bold]no markup[/bold] [/] \u202e end"
    screen.tell(
        f"display.trace(trace('{hostile}', '{hostile}', 'calm'))",
        f"display.note('{hostile}')",
        f"display.sample(trace('{hostile}', '{hostile}'))",
        "step(1, 0.5)",
        f"print('{hostile}')",
    )
    assert screen.sees("step 1/10", "<U+001B>]0;pwned<U+0007>", "[bold]no markup[/bold] [/]")
    screen.tell("display.stop()", "print('over')")
    assert screen.prints("over")
    for command in (b"\x1b]", b"\x9b31m", "\x9b".encode(), "\u202e".encode()):
        assert command not in screen.raw
    assert screen.raw.count(b"\x1b[?1049l") == 1
    assert "note: <U+001B>]0;pwned<U+0007> <U+001B>[2J" in screen.printed


ENDS = {
    "stop": (["display.stop()", "display.stop()", "print('over'); sys.exit(0)"], 0, "over"),
    "exception": (["raise RuntimeError('boom')"], 1, "RuntimeError: boom"),
    "exit": (["sys.exit(3)"], 3, ""),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_terminal_is_as_it_was_after(end: str, terminal: Make) -> None:
    orders, code, said = ENDS[end]
    screen = begin(terminal(80, 24), f"display.note('{LONG}')", "display.phase('train')")
    assert screen.sees("a note that", "train")
    assert not screen.modes[3] & (termios.ECHO | termios.ICANON)
    screen.tell(*orders)
    assert screen.ends() == code
    assert screen.modes == screen.mode
    assert LONG in screen.printed
    assert said in screen.printed
    assert screen.raw.count(b"\x1b[?1049h") == 1
    assert screen.raw.count(b"\x1b[?7h\x1b[?25h\x1b[?1049l") == 1


@pytest.mark.parametrize("handled", [True, False])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"])
def test_the_terminal_is_as_it_was_after_a_signal(name: str, handled: bool, terminal: Make) -> None:
    screen = begin(terminal(80, 24), f"display.note('{LONG}')")
    # As `vf-rl` does, and as a script does that knows of no signals.
    guard = "orderly_end(launched=False)" if handled else "open(os.devnull)"
    screen.tell(f"exec('with {guard}:\\n  print(\\'ready\\'); time.sleep(1000)')")
    assert screen.sees("ready")
    time.sleep(0.2)  # until it sleeps
    number = signal.Signals[name]
    if name == "SIGINT":
        screen.press("\x03")
    elif name == "SIGQUIT":
        screen.press("\x1c")
    else:
        assert screen.process is not None
        screen.process.send_signal(number)
    code = screen.ends()
    if name == "SIGINT":
        assert code == -signal.SIGINT  # Python's own way to end by KeyboardInterrupt
    elif not handled or name == "SIGQUIT":
        assert code == -number
    assert screen.modes == screen.mode
    if not (handled and name == "SIGHUP"):  # which writes to nowhere: the terminal may be gone
        assert LONG in screen.printed
    assert screen.raw.rstrip().count(b"\x1b[?1049h") == 1


def test_keys_are_not_echoed_and_nothing_is_left_of_them(terminal: Make) -> None:
    screen = begin(terminal(80, 24))
    screen.press("wxyz\x1b[C\x1b[20~~\x1b")
    screen.press("s")
    assert screen.sees("hide samples")
    assert "wxyz" not in screen.text
    screen.press("\x1b[")  # and it stops in the middle of a key
    screen.tell("display.stop()", "print('read:', repr(sys.stdin.readline()))")
    assert screen.until(lambda: screen.modes[3] & termios.ICANON != 0)
    screen.press("typed\n")
    assert screen.prints("read: 'typed\\n'"), screen.printed


def test_what_others_print_neither_spoils_the_screen_nor_is_lost(terminal: Make) -> None:
    screen = begin(terminal(80, 26))
    screen.tell(
        "print('from', 'print'); sys.stderr.write('from stderr\\n')", "warnings.warn('careful')"
    )
    assert screen.sees("! from print", "! from stderr", "UserWarning: careful"), screen.text
    screen.tell("display.stop()", "print('over')")
    assert screen.prints("over")
    before = screen.printed.partition("over")[0]
    assert all(text in before for text in ("from print", "from stderr", "careful"))


def test_a_terminal_that_is_held_holds_up_neither_run_nor_end(terminal: Make) -> None:
    screen = begin(terminal(80, 24))
    screen.press("\x13")  # Ctrl-S
    told = screen.pipe.with_name("told")
    screen.tell("step(1, 0.5)", f"open('{told}', 'w').close()")
    assert screen.until(told.exists)
    screen.tell("display.stop()", "print('over'); sys.exit(0)")
    assert screen.ends() == 0
    assert screen.modes == screen.mode
    assert "over" in screen.printed


def test_without_a_keyboard_it_still_draws(terminal: Make) -> None:
    screen = terminal(80, 24)
    nothing = os.open(os.devnull, os.O_RDONLY)
    screen.run(stdin=nothing)
    os.close(nothing)
    screen.tell("display.start(0, 10)", "step(1, 0.5)")
    assert screen.sees("step 1/10", "0.50 ┤")
    assert screen.modes == screen.mode
    screen.tell("display.stop()", "print('over'); sys.exit(0)")
    assert screen.ends() == 0


def test_in_a_shells_background_it_says_lines_and_takes_no_keys(
    terminal: Make, shell_line: Callable[[Terminal], str]
) -> None:
    screen = terminal(100, 30)
    own = "import os, sys; os.open(os.ttyname(0), os.O_RDWR); os.execvp('bash', sys.argv[1:])"
    screen.run(sys.executable, "-c", own, "bash", "--norc", "--noediting", "-i", PS1="$ ")
    screen.press("stty tostop\n" + shell_line(screen) + " &\n")  # the strictest of terminals
    screen.tell("display.waiting('for something')", "display.start(0, 10)", "step(1, 0.5)")
    assert screen.sees("for something", "step    1/10  reward 0.500"), screen.text
    assert screen.modes[3] & termios.ECHO
    screen.press("echo $((40 + 2))\n")
    assert screen.sees("\n42\n")
    screen.press("jobs\n")
    assert screen.sees("Running"), screen.text
    screen.press("fg\n")
    assert screen.until(lambda: b"\x1b[?1049h" in screen.raw), screen.text
    assert screen.sees("step 1/10", "0.50 ┤", "Ctrl-C ends the run"), screen.text
    assert screen.until(lambda: not screen.modes[3] & termios.ECHO)
    screen.press("\x1a")  # Ctrl-Z
    assert screen.prints("Stopped"), screen.printed
    assert screen.until(lambda: screen.modes[3] & termios.ECHO != 0)
    screen.press("bg\n")
    screen.tell("step(2, 0.5)", "display.note('in the background')")
    assert screen.prints("note: in the background"), screen.printed
    assert "step    2/10" in screen.printed
    screen.press("fg\n")
    assert screen.until(lambda: screen.raw.count(b"\x1b[?1049h") == 2)
    screen.press("\x03")
    assert screen.prints("KeyboardInterrupt"), screen.printed
    screen.press("exit\n")
    screen.ends()
    assert screen.modes[3] & termios.ECHO


def test_a_launched_run_has_the_terminal_as_long_as_its_launcher_has(
    terminal: Make, shell_line: Callable[[Terminal], str]
) -> None:
    """A launcher of several processes gives each a session of its own, without a terminal."""
    screen = terminal(100, 30)
    launcher = screen.script.with_name("launcher.py")
    launcher.write_text(
        "import subprocess, sys\n"
        "sys.exit(subprocess.call([sys.executable, *sys.argv[1:]], start_new_session=True))\n"
    )
    screen.script.write_text(screen.script.read_text().replace("if os.getsid(0)", "if not os"))
    own = "import os, sys; os.open(os.ttyname(0), os.O_RDWR); os.execvp('bash', sys.argv[1:])"
    screen.run(sys.executable, "-c", own, "bash", "--norc", "--noediting", "-i", PS1="$ ")
    python, *rest = shell_line(screen).split()
    screen.press(" ".join([python, str(launcher), *rest]) + " &\n")
    screen.tell("display.start(0, 10)", "step(1, 0.5)")
    assert screen.sees("step    1/10  reward 0.500"), screen.text
    assert screen.modes[3] & termios.ECHO
    screen.press("fg\n")
    assert screen.sees("0.50 ┤", "Ctrl-C ends the run"), screen.text
    screen.press("s")
    assert screen.sees("s show samples"), "it was shown, as there was room"
    screen.tell("display.stop()", "print('over'); sys.exit(0)")
    assert screen.prints("over")
    screen.press("exit\n")
    screen.ends()


def test_a_dashboard_that_fails_ends_no_run(terminal: Make) -> None:
    screen = begin(terminal(100, 30))
    screen.tell("display._dashboard._frame = None", "display.note('look here')")
    assert screen.prints("note: look here")
    assert screen.modes == screen.mode
    screen.tell("step(1, 0.5)", "display.stop()", "sys.exit(0)")
    assert screen.ends() == 0
    assert "step    1/10  reward 0.500" in screen.printed


def test_a_run_ends_in_order_when_its_terminal_is_closed(terminal: Make) -> None:
    screen = begin(terminal(100, 30))
    told = screen.pipe.with_name("told")
    orders = [
        "with orderly_end(launched=False):",
        '  try: print("ready"); time.sleep(1000)',
        f'  finally: display.note("n"); display.stop(); open("{told}", "w").close()',
    ]
    screen.tell("exec({!r})".format("\n".join(orders)))
    assert screen.sees("ready")
    screen.hang_up()
    assert screen.process is not None
    screen.process.wait(60)
    assert told.exists()


def test_a_second_interrupt_while_it_stops_leaves_the_terminal_as_it_was(terminal: Make) -> None:
    screen = begin(terminal(80, 24))
    # The moment is a matter of luck for a user, so here it is made sure of.
    orders = [
        "thread = display._dashboard._thread",
        "def broken(*_): del thread.join; raise KeyboardInterrupt",
        "thread.join = broken",
        "try: display.stop()",
        "except KeyboardInterrupt: display.stop(); print('over')",
    ]
    screen.tell("exec({!r})".format("\n".join(orders)))
    assert screen.prints("over")
    assert screen.modes == screen.mode
    screen.tell("sys.exit(0)")
    assert screen.ends() == 0
    assert screen.raw.count(b"\x1b[?1049l") == 1
