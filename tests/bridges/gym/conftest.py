"""Bundled environments in Gymnasium; whatever Gymnasium warns of is an error in these tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest

import vf
from tests.bridges.gym.bundled import BUNDLED, arguments

with suppress(vf.ConfigError):  # without Gymnasium these tests are skipped, file by file
    import vf.gym  # registers the ids

if TYPE_CHECKING:
    from vf.bridges.gym.as_gym import GymnasiumEnv


@pytest.fixture(autouse=True)
def _warnings_are_errors(recwarn: pytest.WarningsRecorder) -> Iterator[None]:
    yield
    # Gymnasium says with a warning what it does not like about an environment.
    said = [str(w.message) for w in recwarn if "WARN:" in str(w.message)]
    assert said == []


@pytest.fixture(autouse=True)
def _no_loop_is_left() -> Iterator[None]:
    yield
    assert "vf-gym" not in [thread.name for thread in threading.enumerate()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Where indexes and what wiki-qa reads are kept for all tests of a file."""
    folder = tmp_path_factory.mktemp("gym")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield folder


@pytest.fixture(params=BUNDLED)
def name(request: pytest.FixtureRequest) -> str:
    """A bundled environment."""
    return str(request.param)


@pytest.fixture
def args(name: str, folder: Any) -> dict[str, Any]:
    """Its arguments."""
    return arguments(name, folder)


@pytest.fixture
def make_env() -> Iterator[Callable[..., GymnasiumEnv]]:
    """Puts a vf-rl environment into Gymnasium's form, and closes it when the test ends."""
    with ExitStack() as stack:

        def make(environment: str | vf.Environment, **args: Any) -> GymnasiumEnv:
            from vf.bridges.gym.as_gym import GymnasiumEnv

            env = GymnasiumEnv(environment, **args)
            stack.callback(env.close)
            return env

        yield make
