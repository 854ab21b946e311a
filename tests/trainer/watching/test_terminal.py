"""The live display on a real pseudo-terminal, read back by an emulator."""

from __future__ import annotations

import io
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from vf.trainer.watching.run_view import NUMBER_ROWS, RunView, trend

if TYPE_CHECKING:
    from tests.trainer.watching.conftest import Terminal

    Make = Callable[..., Terminal]

NOTE = "a note that is far too long for one line, " * 8 + "and has an end"
HOSTILE = r"\x1b]0;pwned\x07 \x1b[2J \x9b31m \x1b[?1049h [bold]no markup[/bold] [/] \u202e end"


def begin(terminal: Terminal, *orders: str, **environ: str) -> Terminal:
    terminal.run(**environ)
    terminal.order("display.start(0, 10)", *orders)
    assert terminal.sees("step 1/10" if orders else "step 0/10"), terminal.text
    return terminal


def test_the_live_region_shows_the_run_and_stays_below_what_is_printed(terminal: Make) -> None:
    screen = terminal(90, 40)
    screen.run()
    screen.order("display.waiting('the engine is starting')")
    assert screen.sees("the engine is starting")
    screen.order(
        "display.start(0, 10)",
        "display.evaluation(0, {'eval/reward/mean': 0.125})",
        "step(1, 0.0); step(2, 0.5); step(3, 1.0, entropy=1.25, kl_sample_train_v1=0.002)",
        "display.phase('train'); display.rollouts(3, 4)",
    )
    assert screen.sees("step 3/10", "elapsed", "left", "train", "3/4 rollouts"), screen.text
    assert screen.sees("reward 1.000 ▁▅█", "held out 0.125 (step 0)"), screen.text
    numbers = "loss             +0.2500  entropy          1.250    KL to sampler    0.002"
    assert screen.sees(numbers), screen.text
    assert screen.sees("last step 4.0 s   generate 75%   train 25%"), screen.text
    assert "engine" not in screen.text

    screen.order(
        f"display.sample(trace('{HOSTILE}', '{HOSTILE}'))",
        f"display.note('{NOTE}'); display.note('{HOSTILE}')",
        "print('from', 'print'); sys.stderr.write('from stderr\\n')",
        "warnings.warn('careful'); logging.getLogger().warning('from a log')",
        "display.evaluation(3, {'eval/reward/mean': 0.25})",
    )
    said = ["from print", "from stderr", "UserWarning: careful", "from a log"]
    assert screen.sees(*said, "held out 0.125 (step 0) → 0.250 (step 3)"), screen.text
    rows = screen.rows
    [bar] = [place for place, row in enumerate(rows) if row.startswith("step 3/10")]
    assert all(place < bar for place, row in enumerate(rows) for text in said if text in row)
    assert [row[:20] for row in rows[bar + 5 : bar + 7]] == [
        f"! {NOTE[:18]}",
        "! <U+001B>]0;pwned<U",
    ]
    assert "│ assistant  <U+001B>]0;pwned<U+0007> <U+001B>[2J" in screen.text

    screen.order("display.stop(); display.stop(); print('over'); sys.exit(0)")
    assert screen.ends() == 0
    assert screen.sees("step 3/10", "reward 1.000", "over")
    assert NOTE in screen.printed
    assert "[bold]no markup[/bold] [/]" in screen.printed
    for command in (b"\x1b]", b"\x9b31m", "\x9b".encode(), "\u202e".encode(), b"\x1b[?1049h"):
        assert command not in screen.raw


def test_without_a_first_step_nothing_is_left_behind(terminal: Make) -> None:
    screen = terminal()
    screen.run(NO_COLOR="1")
    screen.order("display.waiting('the engine is starting')")
    assert screen.sees("the engine is starting")
    screen.order("display.stop(); print('it', 'did not start')")
    assert screen.sees("it did not start")
    assert "engine" not in screen.text


ENDS = {"Ctrl-C": "KeyboardInterrupt", "SIGTERM": "Terminated: SIGTERM", "error": "ValueError"}


@pytest.mark.parametrize("end", ENDS)
def test_the_cursor_is_back_after_a_signal_or_an_error(end: str, terminal: Make) -> None:
    screen = begin(terminal(90, 80), "step(1, 0.5)")  # room for a traceback
    assert screen.screen.cursor.hidden
    screen.order("wait(-1)" if end == "error" else "wait()")
    if end != "error":
        assert screen.sees("it waits")
        assert screen.process is not None
        if end == "Ctrl-C":
            screen.press("\x03")
        else:
            screen.process.send_signal(signal.SIGTERM)
    assert screen.ends() != 0
    assert screen.sees("step 1/10", "Traceback", ENDS[end]), screen.text
    assert not screen.screen.cursor.hidden
    last = max(place for place, row in enumerate(screen.rows) if row)
    assert screen.screen.cursor.y == last + 1, "the shell's prompt comes below"


def test_a_run_ends_in_order_when_its_terminal_is_closed(terminal: Make) -> None:
    screen = begin(terminal())
    screen.order("wait()")
    assert screen.sees("it waits")
    screen.hang_up()
    assert screen.process is not None
    screen.process.wait(60)
    assert Path(f"{screen.pipe}-stopped").exists()


def test_a_small_terminal_without_colours_gets_rows_that_fit(terminal: Make) -> None:
    screen = begin(terminal(30, 8), NO_COLOR="1")
    screen.order(f"display.note('{NOTE}')", "display.rollouts(3, 4)")
    screen.order("step(1, 0.5); step(2, 0.5, entropy=1.25)")
    assert screen.sees("step 2/10", "3/4 rollouts", "reward 0.500"), screen.text
    screen.order("print('printed')")
    assert screen.sees("printed"), screen.text
    assert sum(row.startswith("step ") for row in screen.rows) == 1, screen.text
    assert b"\x1b[3" not in screen.raw


@given(
    st.integers(1, 200),
    st.lists(st.floats(0, 1) | st.just(math.nan), max_size=60),
    st.lists(st.tuples(st.integers(0, 9), st.floats(0, 1)), max_size=3),
)
def test_every_width_gets_rows_that_fit(
    width: int, rewards: list[float], held_out: list[tuple[int, float]]
) -> None:
    view = RunView()
    view.waiting = "日本語\n" * 100
    view.notes += ["日本語\t" * 100, "a\nb", "c"]
    console = Console(file=io.StringIO(), width=width, color_system=None)
    heights = [len(console.render_lines(view, pad=False))]
    view.start(0, 100)
    for step, reward in enumerate(rewards, 1):
        view.finish({"step": step, "reward/mean": reward, "loss": 1e9, "time/total": 0.0})
    for step, reward in held_out:
        view.evaluated(step, reward)
    heights.append(len(console.render_lines(view, pad=False)))
    assert heights[0] == 1
    assert heights[1] <= 2 + 1 + NUMBER_ROWS + 2 + 3


def test_a_number_stays_where_it_is_when_others_change() -> None:
    places = []
    for loss, entropy in ((-0.0123, 12.5), (-2.4e-09, 0.1)):
        view = RunView()
        view.start(0, 10)
        view.finish({"step": 1, "loss": loss, "entropy": entropy, "grad_norm": 0.058})
        console = Console(file=io.StringIO(), width=80, color_system=None)
        console.print(view)
        assert isinstance(console.file, io.StringIO)
        [row] = [line for line in console.file.getvalue().splitlines() if "grad norm" in line]
        places.append([row.index(name) for name in ("loss", "entropy", "grad norm", "0.058")])
    assert places[0] == places[1]
    assert "loss             0 " in row


def test_a_trend_goes_from_the_least_to_the_greatest() -> None:
    assert trend([]) == ""
    assert trend([0.5]) == "▁"
    assert trend([0.0, math.nan, 0.5, 1.0]) == "▁▅█"
    assert trend([0.0] * 500 + [1.0] * 500, columns=4) == "▁▁██"
