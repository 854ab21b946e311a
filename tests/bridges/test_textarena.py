"""TextArena's games as environments: what is said, who moves, the reward, bad input."""

from __future__ import annotations

import asyncio
import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.late import Late
from vf.bridges.seeded_games import GlobalRandom
from vf.bridges.textarena.environment import TextArena
from vf.bridges.textarena.games import innermost, make_game
from vf.evaluation.commands.eval import main
from vf.inference.models.scripted_model import Script
from vf.runtime.errors import ConfigError
from vf.traces.messages import Message
from vf.traces.trace import StopReason

ta = Late("textarena")


def run(environment: vf.Environment, task: vf.Task, script: Script, seed: int = 0) -> vf.Trace:
    return asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(script), seed=seed))


def first(environment: vf.Environment) -> vf.Task:
    return next(iter(environment.tasks("train")))


def bracketed(messages: list[Message]) -> str:
    """A player that knows nothing but how a move is written."""
    for message in reversed(messages):
        text = re.sub(r"(?m)^\[(?:GAME|Player [^\]]*)\]", "", message.content)
        shown: list[str] = re.findall(r"\[[^\[\]\n]+\]", text)
        if message.role == "user" and shown:
            return random.Random(len(messages)).choice(list(dict.fromkeys(shown)))
    return "[]"


def played_directly(
    task: vf.Task, game: str, mine: Sequence[str], theirs: Sequence[str]
) -> tuple[float, str]:
    """Play the same moves in TextArena itself: the reward, and all that its wrapper tells."""
    seat, seed = task.info["seat"], task.info["seed"]
    env = ta.make(game)
    env.reset(num_players=task.info["players"], seed=seed)
    moves = {True: iter(mine), False: iter(theirs)}
    done, told = False, ""
    while not done:
        player, observation = env.get_observation()
        told = observation if player == seat else told
        done, _ = env.step(action=next(moves[player == seat]))
    rewards, _ = env.close()
    return rewards[seat], told


def said(trace: vf.Trace) -> list[str]:
    return [message.content for message in trace.messages if message.role == "assistant"]


def told_again(trace: vf.Trace) -> str:
    """What the model saw before its last move, as TextArena's wrapper repeats it."""
    seat = trace.task.info["seat"]
    names = {True: "Player", False: f"Player {seat}"}
    name = names[trace.task.info["players"] == 1]
    shown = trace.messages[: max(i for i, m in enumerate(trace.messages) if m.role == "assistant")]
    parts = [
        f"[{name}] {as_sent(message.content)}" if message.role == "assistant" else message.content
        for message in shown
    ]
    return "".join(f"\n{part}" for part in parts)


def as_sent(move: str) -> str:
    return move if "[" in move or "]" in move else f"[{move}]"


def bisect(messages: list[Message]) -> str:
    low, high = 1, 20
    told = [m.content for m in messages]
    for move, hint in zip(told[1::2], told[2::2], strict=True):
        guess = int(move.strip("[]"))
        low, high = (guess + 1, high) if "higher" in hint else (low, guess - 1)
    return f"[{(low + high) // 2}]"


def test_a_game_of_one_is_won_and_the_reward_is_textarenas() -> None:
    environment = TextArena("GuessTheNumber-v0", num_train=4)
    for task in environment.tasks("train"):
        trace = run(environment, task, bisect)
        reward, told = played_directly(task, "GuessTheNumber-v0", said(trace), [])
        assert (trace.reward, reward) == (1.0, 1)
        assert trace.stop_reason is StopReason.TERMINATED
        assert told_again(trace) == told
        assert trace.info["textarena"]["reward"] == 1.0


@pytest.mark.parametrize(
    "game", ["GuessTheNumber-v0", "FrozenLake-v0", "Blackjack-v0", "TowerOfHanoi-v0", "2048-v0-3x3"]
)
def test_the_same_moves_get_the_same_reward_in_games_of_one(game: str) -> None:
    environment = TextArena(game, num_train=3)
    for task in environment.tasks("train"):
        trace = run(environment, task, bracketed)
        assert trace.error is None
        if trace.stop_reason is StopReason.TERMINATED:
            reward, told = played_directly(task, game, said(trace), [])
            assert trace.reward == pytest.approx(min(1, max(0, reward)))
            if game != "TowerOfHanoi-v0":  # which says "[GAME]" before the player's moves
                assert told_again(trace) == told


@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize(
    "game", ["TicTacToe-v0", "KuhnPoker-v0", "ConnectFour-v0", "IndianPoker-v0"]
)
def test_the_same_moves_get_the_same_reward_against_another(game: str, seat: int) -> None:
    theirs: list[str] = []

    def other(messages: list[Message]) -> str:
        theirs.append(bracketed(messages))
        return theirs[-1]

    environment = TextArena(game, opponent=other, seat=seat, num_train=3)
    rewards = set()
    for task in environment.tasks("train"):
        theirs.clear()
        trace = run(environment, task, bracketed)
        assert trace.error is None
        assert trace.stop_reason is StopReason.TERMINATED
        reward, told = played_directly(task, game, said(trace), theirs)
        assert trace.reward == (reward + 1) / 2
        assert trace.step_rewards[-1] == reward
        assert told_again(trace) == told
        rewards.add(reward)
    assert rewards <= {-1, 0, 1}


WIN = ["[0]", "[1]", "[2]"]  # the upper row
LET = ["[3]", "[4]"]


@pytest.mark.parametrize(
    ("seat", "mine", "theirs", "reward"),
    [
        (0, WIN, LET, 1.0),
        (1, WIN, [*LET, "[8]"], 1.0),
        (0, ["[3]", "[4]", "[8]"], WIN, 0.0),
        (0, ["[0]", "[2]", "[3]", "[7]", "[8]"], ["[1]", "[4]", "[5]", "[6]"], 0.5),
        (0, ["nonsense", "nonsense"], LET, 0.0),
        (0, WIN, ["nonsense"], 1.0),
        (0, ["0", "1", "2"], LET, 1.0),  # TextArena's own wrapper adds the brackets
    ],
)
def test_wins_draws_losses_and_invalid_moves(
    seat: int, mine: list[str], theirs: list[str], reward: float
) -> None:
    environment = TextArena("TicTacToe-v0", opponent=theirs, seat=seat)
    trace = run(environment, first(environment), mine)
    assert trace.reward == reward, trace.error
    assert trace.info["textarena"]["seat"] == seat
    assert trace.info["textarena"]["invalid_move"] == (mine[0] == "nonsense")
    assert trace.score is not None
    assert trace.score.metrics["reward"] == 2 * reward - 1


def test_messages_only_grow_and_nothing_is_repeated() -> None:
    environment = TextArena("TicTacToe-v0", opponent=LET, seat=0)
    trace = run(environment, first(environment), ["[0]", "[0]", "[1]", "[2]"])
    observations = [m.content for m in trace.messages if m.role == "user"]
    assert observations[0].startswith("[GAME] You are Player 0 in Tic Tac Toe.")
    assert "[Player 1] [3]" in observations[1]
    assert "attempted an invalid move" in observations[2]
    assert not any("You are Player 0" in told for told in observations[1:])
    assert not any("[Player 0] " in told for told in observations)


def test_the_seat_is_drawn_per_task_and_seeds_are_in_one_split_only() -> None:
    environment = TextArena("TicTacToe-v0", num_train=40, num_eval=40)
    train, held_out = list(environment.tasks("train")), list(environment.tasks("eval"))
    assert {task.info["seat"] for task in train} == {0, 1}
    assert not {t.info["seed"] for t in train} & {t.info["seed"] for t in held_out}
    assert train == list(TextArena("TicTacToe-v0", num_train=40).tasks("train"))


def test_episodes_at_once_do_not_disturb_one_another_or_anybody() -> None:
    environment = TextArena("2048-v0-3x3", num_train=4, max_turns=12)
    tasks = list(environment.tasks("train"))
    alone = [run(environment, task, bracketed).messages for task in tasks]
    random.seed(5)
    expected = random.Random(5).random()

    async def together() -> Sequence[vf.Trace]:
        model = vf.ScriptedModel(bracketed)
        return await asyncio.gather(*(vf.rollout(environment, task, model) for task in tasks))

    assert [trace.messages for trace in asyncio.run(together())] == alone
    assert random.random() == expected


def test_a_random_opponent_is_the_same_for_the_same_seed_of_the_rollout() -> None:
    environment = TextArena("TicTacToe-v0", seat=0)
    task = first(environment)
    texts = {seed: run(environment, task, bracketed, seed).messages for seed in (1, 1, 2, 3, 4)}
    assert run(environment, task, bracketed, 1).messages == texts[1]
    assert len({str(messages) for messages in texts.values()}) > 1


@pytest.mark.parametrize("seat", [0, 1, 2])
def test_three_players(seat: int) -> None:
    environment = TextArena("ThreePlayerTicTacToe-v0", seat=seat, num_train=2)
    assert environment.players == 3
    for task in environment.tasks("train"):
        trace = run(environment, task, bracketed)
        assert trace.error is None
        assert set(trace.info["textarena"]["rewards"]) == {"0", "1", "2"}


def test_a_model_can_be_the_opponent() -> None:
    environment = TextArena("TicTacToe-v0", opponent=vf.ScriptedModel(LET), seat=0)
    assert run(environment, first(environment), WIN).reward == 1.0


def test_an_opponent_at_an_api_that_is_gone_earns_no_reward() -> None:
    table = {"model": "m", "base_url": "http://127.0.0.1:9/v1", "max_retries": 0, "timeout": 5}
    environment = TextArena("TicTacToe-v0", opponent=table, seat=0)
    trace = run(environment, first(environment), WIN)
    assert trace.reward is None
    assert trace.error is not None
    assert trace.error.boundary == "model"


def test_a_policy_that_fails_earns_no_reward() -> None:
    def broken(messages: list[Message]) -> str:
        raise OSError("no move to be had")

    environment = TextArena("TicTacToe-v0", opponent=broken, seat=0)
    trace = run(environment, first(environment), WIN)
    assert trace.reward is None
    assert trace.error is not None
    assert "no move to be had" in trace.error.message


def test_a_move_at_which_the_game_itself_fails_loses_it() -> None:
    """Else a model could choose by it not to be scored."""
    environment = TextArena("GuessTheNumber-v0")
    trace = run(environment, first(environment), ["[10]", f"[{'9' * 5000}]"])
    assert trace.error is None
    assert trace.reward == 0.0
    assert trace.stop_reason is StopReason.TERMINATED
    assert trace.info["textarena"]["invalid_move"] is True
    assert "failed at the move: ValueError: Exceeds the limit" in trace.info["textarena"]["reason"]


def test_an_invalid_move_that_the_game_rewards_with_words_loses_it() -> None:
    environment = TextArena("Cryptarithm-v0")
    trace = run(environment, first(environment), ["nonsense", "nonsense"])
    assert trace.error is None
    assert trace.reward == 0.0
    assert "could not convert string to float" in trace.info["textarena"]["reason"]


def test_our_own_limit_earns_nothing_and_is_a_truncation() -> None:
    environment = TextArena("TicTacToe-v0", opponent=LET, seat=0, max_turns=2)
    trace = run(environment, first(environment), WIN)
    assert (trace.reward, trace.truncated) == (0.0, True)


def test_a_game_that_ends_before_the_models_first_turn_earns_no_reward() -> None:
    environment = TextArena("TicTacToe-v0", opponent=["nonsense"], seat=1)
    trace = run(environment, first(environment), WIN)
    assert trace.reward is None
    assert trace.error is not None
    assert "was over before the model's first turn" in trace.error.message


def test_rewards_beyond_what_is_usual_need_to_be_valued() -> None:
    environment = TextArena("TicTacToe-v0", opponent=LET, seat=0)
    trace = run(environment, first(environment), WIN)
    trace.info["textarena"]["reward"] = 7.0
    with pytest.raises(vf.runtime.errors.RubricError, match="returns ="):
        environment.outcome(trace)
    assert TextArena("TicTacToe-v0", returns=(0, 14)).outcome(trace) == 0.5


def without_words(game: str) -> bool:
    try:
        make_game(game, {}, GlobalRandom(0))
    except ConfigError:
        return True
    return False


@pytest.mark.parametrize(
    ("game", "needed"),
    [
        ("Wordle-v0", ["words", "averaged_perceptron_tagger_eng"]),
        ("Hangman-v0", ["words"]),
        ("WordLadder-v0", ["words"]),
    ],
)
def test_word_lists_that_are_missing_are_named_and_not_fetched(
    game: str, needed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import nltk  # type: ignore[import-untyped]

    monkeypatch.setattr(nltk.data, "path", [])
    for name in [name for name in sys.modules if name.startswith("textarena.envs.W")]:
        monkeypatch.delitem(sys.modules, name)
    downloads: list[Any] = []
    monkeypatch.setattr(nltk, "download", lambda *args, **kwargs: downloads.append(args))
    if not without_words(game):
        pytest.skip("the word list has been read already")
    with pytest.raises(ConfigError) as caught:
        TextArena(game)
    assert f"python -m nltk.downloader {' '.join(needed)}" in str(caught.value)
    assert downloads == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"game": "TicTacTo-v0"}, "Did you mean 'TicTacToe-v0'"),
        ({"game": "GuessWho-v0"}, "OPENROUTER_API_KEY"),
        ({"args": {"size": 3}}, "unexpected keyword argument 'size'"),
        ({"seat": 2}, "seat must be 0 to 1, got 2"),
        ({"players": 3}, "does not begin with players = 3"),
        ({"max_turns": 0}, "max_turns must be at least 1"),
        ({"num_eval": 0}, "num_train and num_eval must be at least 1"),
        ({"returns": [1, 0]}, "returns must be (worst, best)"),
        ({"opponent": "randm"}, "there is no opponent 'randm'"),
        ({"opponent": []}, "holds texts, at least one"),
        ({"opponent": 3}, "opponent cannot be int"),
        ({"opponent": {"base_url": "http://x/v1"}}, "opponent.model: missing"),
        ({"opponent": {"modle": "x"}}, "Did you mean 'model'"),
        ({"opponent": {"model": "x", "api_key_env": "NO_SUCH_KEY"}}, "NO_SUCH_KEY is not set"),
    ],
)
def test_bad_input(arguments: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="textarena") as caught:
        TextArena(**{"game": "TicTacToe-v0", **arguments})
    assert told in str(caught.value)


def test_the_wrappers_of_actions_are_kept_and_those_of_observations_stepped_round() -> None:
    game = make_game("TicTacToe-v0", {}, GlobalRandom(0))
    assert isinstance(game, ta.Wrapper)
    assert type(innermost(game)).__name__ == "TicTacToeEnv"


def test_vf_eval_measures_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "results"
    options = ["-m", "tiny", "-n", "2", "--max-tokens", "8", "--json", "-o", str(folder)]
    assert main(["textarena:TicTacToe-v0", *options]) == 0, capsys.readouterr().err
    (file,) = folder.rglob("*.jsonl")
    traces = list(vf.TraceStore(file))
    assert [trace.error for trace in traces] == [None, None]
    assert all(trace.info["textarena"]["seat"] in (0, 1) for trace in traces)


def test_it_is_found_by_its_name() -> None:
    environment = vf.make("textarena:TicTacToe-v0", opponent=LET, seat=0)
    assert isinstance(environment, TextArena)
