"""What is found wrong before a model is loaded, and what is left of looking for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import vf
from vf.environments.environment import Split
from vf.trainer.preflight import preflight
from vf.trainer.settings.load_config import parse_config

TASKS = 5


class Session:
    """What an episode opens when it is reset."""

    opened = 0

    def __init__(self) -> None:
        Session.opened += 1

    def close(self) -> None:
        Session.opened -= 1


class Sessions(vf.Environment):
    """Each episode holds a session; ``ends_badly`` fails in its close."""

    rubric = vf.Rubric(outcome=lambda trace: 1.0)

    def __init__(self, ends_badly: bool = False) -> None:
        self.ends_badly = ends_badly

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for index in range(TASKS):
            yield vf.Task(f"{split}-{index}", "Hello.")

    def reset(self, task: vf.Task) -> str:
        self.hold("session", Session)
        assert Session.opened == 1, "those of the tasks before are closed"
        return "Hello."

    def close(self) -> None:
        if self.ends_badly:
            raise OSError("the server hung up")


vf.register("test-sessions", Sessions)


def config(**env_args: object) -> dict[str, object]:
    env = {"id": "test-sessions", "args": env_args}
    args = {"max_prompt_len": 192, "max_seq_len": 384}
    return {"model": "tiny", "env": env, "trainer": {"args": args}}


def test_what_an_episode_holds_is_closed_after_its_prompt_was_measured() -> None:
    preflight(parse_config(config())[0])
    assert Session.opened == 0


def test_an_episode_that_cannot_be_closed_is_told_and_holds_nothing() -> None:
    said = "environment 'test-sessions': close raised OSError: the server hung up"
    with pytest.raises(vf.ConfigError, match=said):
        preflight(parse_config(config(ends_badly=True))[0])
    assert Session.opened == 0
