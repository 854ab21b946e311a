"""Creates TextArena's games, and checks what is missing and the number of players."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vf.bridges.seeded_games import GlobalRandom
from vf.runtime.errors import ConfigError, did_you_mean
from vf.runtime.extras import check_version, load

SUPPORTED = ("0.7.4", "0.8")
MOST_PLAYERS = 15
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_RESOURCE = re.compile(r"Resource '?([\w-]+)'? not found")
_TAGGER = "averaged_perceptron_tagger_eng"


def check_game(game: str, args: Mapping[str, Any], players: int | None, max_turns: int) -> int:
    """Check that a game can be played here, and return the number of players.

    Args:
        game: The game's id.
        args: Arguments of its class.
        players: The number of players; None for the game's minimum.
        max_turns: Maximum replies in one episode.

    Raises:
        ConfigError: If it cannot, a setting is out of range, or TextArena is missing or of a
            version that is not supported.
    """
    load("textarena", "textarena")
    check_version("textarena", "textarena", *SUPPORTED)
    if max_turns < 1:
        raise ConfigError(f"textarena: max_turns must be at least 1, got {max_turns}")
    return count_players(game, args, players)


def make_game(game: str, args: Mapping[str, Any], dice: GlobalRandom) -> Any:
    """Make a game, as ``textarena.make`` does, but without downloads.

    Several games let NLTK download word lists whenever they are made. Here they get those that are
    installed.

    Args:
        game: The game's id.
        args: Arguments of its class, before those of the id.
        dice: The source of the game's random numbers.

    Raises:
        ConfigError: If there is no such game, it does not take an argument, or something that it
            needs is missing; says which.
    """
    textarena = load("textarena", "textarena")
    registry = load("textarena.envs.registration", "textarena").ENV_REGISTRY
    if game not in registry:
        raise ConfigError(
            f"textarena: there is no game {game!r}.{did_you_mean(game, registry)} "
            f"It has {len(registry)}; textarena.pprint_registry_detailed() lists them"
        )
    try:
        with dice.in_place(), _no_downloads():
            return textarena.make(game, **args)
    except LookupError as error:
        missing = _RESOURCE.search(_COLOUR.sub("", str(error)))
        if missing is None:
            raise _creation_error(game, error) from error
        needed = [missing[1], *_missing_tagger(registry[game].entry_point, missing[1])]
        raise ConfigError(
            f"textarena: {game} needs NLTK's {' and '.join(map(repr, needed))}, which nothing "
            f"here fetches by itself: python -m nltk.downloader {' '.join(needed)}"
        ) from error
    except SyntaxError as error:
        newer = " (written for Python 3.12 or later?)" if sys.version_info < (3, 12) else ""
        raise _creation_error(game, error, newer) from error
    except Exception as error:  # of a few games, the files or an API key are missing
        raise _creation_error(game, error) from error


def count_players(game: str, args: Mapping[str, Any], players: int | None) -> int:
    """Return the number of players, by trying to begin.

    Args:
        game: The game's id.
        args: Arguments of its class.
        players: The number of players; None for the game's minimum.

    Raises:
        ConfigError: If it cannot be made, or does not begin with that number.
    """
    counts = range(1, MOST_PLAYERS + 1) if players is None else [players]
    refused: Exception | None = None
    for count in counts:
        dice = GlobalRandom(0)
        env = make_game(game, args, dice)
        try:
            with dice.in_place(), _no_downloads():
                env.reset(num_players=count, seed=0)
        except Exception as error:
            refused = refused or error
            continue
        state = innermost(env).state
        alone = isinstance(state, load("textarena", "textarena").SinglePlayerState)
        # A few games for several do not mind to begin with one.
        if alone == (state.num_players == 1) and (players is None or state.num_players == players):
            return int(state.num_players)
    with_players = "" if players is None else f" with players = {players}"
    raise ConfigError(
        f"textarena: {game} does not begin{with_players}: {refused or 'it is for another number'}"
    )


def innermost(env: Any) -> Any:
    """Return a game without its wrappers."""
    wrapper = load("textarena", "textarena").Wrapper
    while isinstance(env, wrapper):
        env = env.env
    return env


@contextmanager
def _no_downloads() -> Iterator[None]:
    nltk = load("nltk", "textarena")
    theirs = nltk.download
    nltk.download = lambda *args, **kwargs: True
    try:
        yield
    finally:
        nltk.download = theirs


def _missing_tagger(entry_point: object, missing: str) -> list[str]:
    """Return NLTK's tagger, if the game's code uses it and it is missing too."""
    textarena = load("textarena", "textarena")
    module = str(entry_point).partition(":")[0].split(".")
    code = Path(textarena.__file__).parent.joinpath(*module[1:]).with_suffix(".py")
    if missing == _TAGGER or not code.is_file() or "pos_tag" not in code.read_text("utf-8"):
        return []
    try:
        load("nltk", "textarena").data.find(f"taggers/{_TAGGER}")
    except LookupError:
        return [_TAGGER]
    return []


def _creation_error(game: str, error: Exception, hint: str = "") -> ConfigError:
    lines = str(error).strip().splitlines() or [""]
    return ConfigError(f"textarena: cannot make {game!r}: {type(error).__name__}: {lines[0]}{hint}")
