"""What a bridge says where its package is missing, or of a version that it does not support."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

import vf
from vf.bridges.openenv.environment import OpenEnvEnvironment
from vf.bridges.reasoning_gym.environment import ReasoningGym
from vf.bridges.textarena.environment import TextArena
from vf.bridges.verifiers import to_verifiers
from vf.bridges.verifiers.from_verifiers import from_verifiers

# The extra, a function that needs it, and the versions that are supported.
BRIDGES: list[tuple[str, Callable[[], Any], str]] = [
    ("openenv", lambda: OpenEnvEnvironment("http://127.0.0.1:9"), "0.10 and later, before 0.11"),
    ("reasoning-gym", lambda: ReasoningGym("leg_counting"), "0.1.20 and later, before 0.2"),
    ("textarena", lambda: TextArena("TicTacToe-v0"), "0.7.4 and later, before 0.8"),
    ("verifiers", lambda: from_verifiers("their-words"), "0.3.1 and later, before 0.5"),
    ("verifiers", lambda: vf.to_verifiers("calculator"), "0.3.1 and later, before 0.5"),
]


@pytest.fixture(autouse=True)
def nothing_is_known() -> None:
    to_verifiers._plugin.cache_clear()


@pytest.mark.parametrize(("extra", "use", "supported"), BRIDGES)
@pytest.mark.parametrize("version", ["0.0.9", "99.0"])
def test_another_version_is_refused(
    extra: str,
    use: Callable[[], Any],
    supported: str,
    version: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vf.runtime.extras.version", lambda package: version)
    words = f"the package {extra} {version} is not supported, but {supported}, are: pip install"
    with pytest.raises(vf.ConfigError, match=re.escape(words)):
        use()


@pytest.mark.parametrize(("extra", "use", "supported"), BRIDGES)
def test_without_the_package_the_extra_is_named(
    extra: str, use: Callable[[], Any], supported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, extra.replace("-", "_"), None)
    with pytest.raises(vf.ConfigError, match=re.escape(f"pip install 'vf-rl[{extra}]'")):
        use()
