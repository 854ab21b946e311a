"""Worker processes: a hang, a crash or an exit there reaches nobody but its caller."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import vf
from tests.runtime import worker_functions as fns
from tests.waiting import alive, until, wait_until
from vf.runtime import process_pool, worker_handles
from vf.runtime.errors import RubricError, ScoringDied, ScoringTimeout
from vf.runtime.process_pool import run_bounded, run_in_process
from vf.runtime.worker_handles import Worker, interpreter


def run(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return asyncio.run(run_in_process(fn, *args, **kwargs))


def make_trace(reply: str = "") -> vf.Trace:
    trace = vf.Trace(environment="e", task=vf.Task("t", "p"), seed=0)
    trace.messages = [vf.Message("assistant", reply)]
    trace.info["caller"] = os.getpid()
    return trace


def told(path: Path) -> bool:
    return path.exists() and path.read_text() != ""


def test_functions_run_in_few_other_processes_that_are_used_again() -> None:
    assert run(fns.add, 2, 3) == 5
    workers = {run(fns.process_id) for _ in range(20)}  # each from a new loop
    assert os.getpid() not in workers
    assert len(workers) <= min(8, os.cpu_count() or 1)


def test_a_search_path_that_holds_more_than_texts_serves_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_pool, "_pools", process_pool._Pools(1))  # without workers yet
    monkeypatch.setattr(sys, "path", [*sys.path, Path(__file__).parent])

    async def add() -> Any:
        async with asyncio.timeout(60):
            return await run_in_process(fns.add, 2, 3)

    assert asyncio.run(add()) == 5


def test_a_worker_that_cannot_be_started_is_an_error_for_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_pool, "_pools", process_pool._Pools(1))
    monkeypatch.setattr(sys, "executable", None)
    with pytest.raises(RubricError, match="'add': no process could be started"):
        run(fns.add, 2, 3)


@pytest.mark.parametrize(
    ("fn", "args", "said"),
    [
        (fns.raises, ("gold",), "'raises' raised KeyError: 'gold'"),
        (fns.exits, (), "'exits' raised SystemExit: enough"),
        (fns.dies, (3,), "'dies': its process ended in the middle, with exit code 3"),
        (fns.unpicklable, (), "'unpicklable' raised"),
        (lambda: 1, (), "'<lambda>': cannot be sent to a process"),
    ],
)
def test_whatever_goes_wrong_names_the_function(fn: Any, args: Any, said: str) -> None:
    with pytest.raises(RubricError, match=said):
        run(fn, *args)
    assert run(fns.add, 1, 1) == 2  # and the next one finds a worker


def test_the_workers_traceback_is_the_cause() -> None:
    with pytest.raises(RubricError) as caught:
        run(fns.raises, "gold")
    assert "raise KeyError(message)" in str(caught.value.__cause__)


@pytest.mark.slow
async def test_a_function_that_hangs_is_killed_and_holds_up_no_other(tmp_path: Path) -> None:
    path = tmp_path / "pid"

    # As many as there are workers would be in each other's way if none were replaced.
    hanging = [run_in_process(fns.hang_after_telling, str(path), timeout=0.3) for _ in range(9)]
    quick = [run_in_process(fns.add, n, n) for n in range(9)]
    found = await asyncio.gather(*hanging, *quick, return_exceptions=True)
    assert all(isinstance(error, ScoringTimeout) for error in found[:9])
    assert "'hang_after_telling' took longer than its 0.3 s, and was killed" in str(found[0])
    assert found[9:] == [n + n for n in range(9)]
    assert not alive(int(path.read_text()))


async def test_whoever_gives_up_takes_the_function_along(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    call = asyncio.ensure_future(run_in_process(fns.hang_after_telling, str(path), timeout=600))
    await until(lambda: told(path))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: not alive(int(path.read_text())))
    assert await run_in_process(fns.add, 1, 1) == 2


def test_a_worker_that_was_killed_while_idle_is_replaced() -> None:
    before = {run(fns.process_id) for _ in range(20)}
    for worker in before:
        psutil.Process(worker).kill()
    wait_until(lambda: not any(map(alive, before)))
    assert run(fns.process_id) not in {*before, os.getpid()}


def test_a_busy_worker_ends_with_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    script = textwrap.dedent(
        f"""
        import asyncio, os, sys, threading
        sys.path[:] = {sys.path!r}
        from tests.runtime import worker_functions as fns
        from tests.waiting import wait_until
        from vf.runtime.process_pool import run_in_process

        def die():
            wait_until(lambda: os.path.exists({str(path)!r}) and open({str(path)!r}).read())
            os.kill(os.getpid(), 9)  # no chance to clean up

        threading.Thread(target=die).start()
        asyncio.run(run_in_process(fns.hang_after_telling, {str(path)!r}, timeout=600))
        """
    )
    subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    wait_until(lambda: not alive(int(path.read_text())))


def test_what_a_function_prints_does_not_disturb_its_answer() -> None:
    assert run(fns.prints) == "done"


def test_a_cpu_bound_scorer_is_one_like_any_other() -> None:
    rubric = vf.Rubric(fns.long_reply, metrics=[lambda trace: 1.0])
    assert asyncio.run(rubric.score(make_trace("12345"))).outcome == 0.5


def test_a_cpu_bound_scorer_that_hangs_is_an_error_not_a_zero() -> None:
    rubric = vf.Rubric(lambda trace: 1.0, [fns.hangs])
    with pytest.raises(ScoringTimeout, match=r"'hangs' took longer than its 0\.3 s"):
        asyncio.run(rubric.score(make_trace()))


async def test_the_loop_continues_while_a_cpu_bound_scorer_computes(tmp_path: Path) -> None:
    """It computes until the loop has told it to stop, and not in a thread of this process."""
    trace = make_trace()
    trace.info["until"] = str(tmp_path / "told")
    scoring = asyncio.ensure_future(vf.Rubric(fns.busy).score(trace))
    for _ in range(20):
        await asyncio.sleep(0)
        assert not scoring.done()
    (tmp_path / "told").touch()
    assert (await scoring).reward == 1.0


def test_what_a_worker_cannot_be_given_is_refused_at_once() -> None:
    def inner(trace: vf.Trace) -> float:
        return 1.0

    async def waits(trace: vf.Trace) -> float:
        return 1.0

    with pytest.raises(vf.ConfigError, match="'inner' is marked cpu_bound, but a worker"):
        vf.Rubric(vf.cpu_bound(inner))
    with pytest.raises(vf.ConfigError, match="'waits' is marked cpu_bound, so it must be a plain"):
        vf.Rubric(vf.cpu_bound(waits))
    with pytest.raises(vf.ConfigError, match="timeout must be positive, got 0"):
        vf.cpu_bound(timeout=0)


def test_a_function_of_the_main_file_is_refused_with_the_way_out(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(
        "import vf\n"
        "@vf.cpu_bound\n"
        "def mine(trace): return 1.0\n"
        "try: vf.Rubric(mine)\n"
        "except vf.ConfigError as error: print(error)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=60
    )
    assert "'mine' is marked cpu_bound, but it is defined in the program's main file" in done.stdout


async def test_bounded_calls_that_never_end_hold_up_no_other() -> None:
    """More than there are workers: a quick call that comes later is answered before any of them."""

    endless = [asyncio.ensure_future(run_bounded(fns.spins, timeout=600)) for _ in range(24)]
    await asyncio.sleep(0)  # they are in the queue
    assert await run_bounded(fns.add, 2, 3, timeout=600) == 5
    ended = [call.done() for call in endless]
    for call in endless:
        call.cancel()
    await asyncio.gather(*endless, return_exceptions=True)
    assert not any(ended)


@pytest.mark.parametrize(
    ("fn", "args", "error", "message"),
    [
        (fns.spins, (), ScoringTimeout, "'spins' took longer than its 0.1 s of processor time"),
        (fns.allocates, (), ScoringDied, "'allocates': its process ended in the middle"),
        (fns.dies, (3,), ScoringDied, "'dies': its process ended in the middle, with exit code 3"),
        (fns.raises, ("gold",), RubricError, "'raises' raised KeyError: 'gold'"),
        (fns.killed, (), RubricError, "'killed': its process ended in the middle.*code -9"),
    ],
)
def test_what_goes_wrong_in_a_bounded_call_names_the_function(
    fn: Any, args: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(RubricError, match=message) as caught:
        asyncio.run(run_bounded(fn, *args, timeout=0.1))
    assert caught.type is error
    assert asyncio.run(run_bounded(fns.add, 1, 1, timeout=0.1)) == 2


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("_START_TIMEOUT", "did not start within 0 s"),
        ("_STANDS", "did not get .* s of processor time within 0 s"),
    ],
)
def test_a_bounded_call_that_the_machine_holds_up_is_not_out_of_its_time(
    monkeypatch: pytest.MonkeyPatch, limit: str, message: str
) -> None:
    monkeypatch.setattr(process_pool if limit == "_STANDS" else worker_handles, limit, 0.0)
    monkeypatch.setattr(process_pool, "_pools", process_pool._Pools(1))
    monkeypatch.setattr(process_pool._pools.forks[0], "_start", lambda fn: Worker(interpreter))
    with pytest.raises(RubricError, match=message) as caught:
        asyncio.run(run_bounded(fns.spins, timeout=0.01))
    assert caught.type is RubricError


async def test_bounded_calls_survive_the_process_that_forks_their_workers(tmp_path: Path) -> None:
    """The call that a worker is at then is made again: it was not the answer's doing."""
    path = tmp_path / "forkers"

    result = asyncio.ensure_future(run_bounded(fns.wait_for_another, str(path), timeout=60))
    await until(lambda: told(path))
    psutil.Process(int(path.read_text())).kill()
    first = int(await result)
    assert first not in (int(path.read_text()), os.getpid())
