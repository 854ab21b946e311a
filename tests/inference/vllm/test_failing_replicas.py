"""Of several servers, one that fails, refuses or hangs is ended while the others serve."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.inference.vllm.stand_in_engine import StandingTogether
from tests.waiting import alive, wait_until
from vf.inference.vllm import admin, server_process, vllm_engine
from vf.runtime.errors import ConfigError

Stand = Callable[..., StandingTogether]
Serve = Callable[..., str]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers that do not answer be noticed in a moment."""
    monkeypatch.setattr(vllm_engine, "STUCK_SECONDS", 0.3)
    monkeypatch.setattr(admin, "LOAD_SECONDS", 0.1)
    monkeypatch.setattr(admin, "HEALTH_SECONDS", 0.1)
    monkeypatch.setattr(server_process, "GRACE_SECONDS", 0.1)


@pytest.mark.parametrize("method", ["lora", "disk"])
def test_one_that_refuses_a_version_is_left_out_and_started_again(
    stand_together: Stand, method: str, tmp_path: Path
) -> None:
    how = {"refusing": str(tmp_path / "refusing-{port}")}
    standing = stand_together(method, replicas=2, how=how).start()
    standing.publish(4, 0)
    standing.spoil(0)
    standing.publish(5, 1)
    assert standing.sample_of(1).token_ids == [5, 5]
    standing.wait_for(0)
    assert standing.sample_of(0).token_ids == [5, 5]
    assert [len(journal.starts) for journal in standing.journals] == [2, 1]


def test_a_version_that_all_refuse_ends_the_run(stand_together: Stand, tmp_path: Path) -> None:
    how = {"refusing": str(tmp_path / "refusing-{port}")}
    standing = stand_together(replicas=2, how=how).start()
    standing.publish(4, 0)
    standing.spoil(0)
    standing.spoil(1)
    with pytest.raises(ConfigError, match="illegal memory access"):
        standing.publish(5, 1)


def test_what_one_refuses_at_the_beginning_is_an_error(
    stand_together: Stand, tmp_path: Path
) -> None:
    how = {"refusing": str(tmp_path / "refusing-{port}")}
    standing = stand_together(replicas=2, how=how).start()
    standing.spoil(1)
    with pytest.raises(ConfigError, match="illegal memory access"):
        standing.publish(4, 0)


@pytest.mark.slow
@pytest.mark.gate
@pytest.mark.usefixtures("impatient")
def test_one_that_hangs_is_ended_and_started_again(stand_together: Stand) -> None:
    standing = stand_together(replicas=2).start()
    standing.publish(4, 0)
    os.kill(standing.journals[0].pids[0], signal.SIGSTOP)
    standing.publish(5, 1)
    assert standing.sample_of(1).token_ids == [5, 5]
    standing.wait_for(0)
    assert standing.sample_of(0).token_ids == [5, 5]
    assert [len(journal.starts) for journal in standing.journals] == [2, 1]


@pytest.mark.usefixtures("impatient")
def test_one_of_somebody_elses_that_hangs_is_waited_for(
    stand_together: Stand, serve: Serve
) -> None:
    flags = ("--enable-lora", "--max-lora-rank", "8")
    urls = [serve(*flags, separate=True), serve(*flags, separate=True)]
    standing = stand_together(base_urls=urls).start()
    standing.publish(4, 0)
    pid = standing.journals[0].pids[0]
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: not standing.engine.members[0].serving.is_up)
    standing.publish(5, 1)
    assert standing.sample_of(1).token_ids == [5, 5]
    os.kill(pid, signal.SIGCONT)
    standing.wait_for(0)
    assert standing.sample_of(0).token_ids == [5, 5]
    assert not standing.noted


def test_those_that_sleep_do_without_one_that_died(stand_together: Stand) -> None:
    standing = stand_together(sleep=True).start()
    standing.publish(4, 0)
    standing.kill(0)
    with standing.engine.training():
        os.kill(standing.journals[1].pids[0], signal.SIGKILL)
        assert len(standing.journals[0].starts) == 1, "its GPU is the trainer's"
    wait_until(lambda: not standing.engine.members[1].serving.is_up)
    standing.engine.check()
    assert [len(journal.starts) for journal in standing.journals] == [2, 2, 1]
    assert not standing.engine._returning, "all are back before the next training"
    standing.publish(5, 1)
    assert [standing.sample_of(n).token_ids for n in range(3)] == [[5, 5]] * 3


def test_one_that_cannot_sleep_is_left_out(stand_together: Stand, tmp_path: Path) -> None:
    how = {"refusing": str(tmp_path / "refusing-{port}")}
    standing = stand_together(replicas=2, sleep=True, how=how).start()
    standing.publish(4, 0)
    standing.spoil(0)
    with standing.engine.training():
        assert not alive(standing.journals[0].pids[0]), "the trainer needs its memory"
    standing.publish(5, 1)
    standing.engine.check()
    assert [standing.sample_of(n).token_ids for n in range(2)] == [[5, 5]] * 2
