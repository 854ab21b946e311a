"""The bundled tic-tac-toe, and what it is played against."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import vf
from vf.environments.bundled.tic_tac_toe import TicTacToe
from vf.inference.model_files import resolve_model
from vf.inference.models.frozen_model import FrozenModel

WINS = ({1, 2, 3}, {4, 5, 6}, {7, 8, 9}, {1, 4, 7}, {2, 5, 8}, {3, 6, 9}, {1, 5, 9}, {3, 5, 7})


def play(script: Any, split: Any = "train", index: int = 0, **args: Any) -> vf.Trace:
    environment = TicTacToe(**args)
    task = next(islice(environment.tasks(split), index, None))
    return asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(script), seed=index))


def rewards(trace: vf.Trace) -> dict[str, float]:
    return {side: role.reward for side, role in trace.roles.items()}


def metrics(trace: vf.Trace) -> dict[str, float | None]:
    assert trace.score is not None
    return dict(trace.score.metrics)


@pytest.mark.parametrize(
    ("moves", "earned", "forfeited"),
    [
        ("14253", {"X": 1.0, "O": 0.0}, 0.0),
        ("415293", {"X": 0.0, "O": 1.0}, 0.0),
        ("329145876", {"X": 1.0, "O": 0.0}, 0.0),
        ("123546879", {"X": 0.5, "O": 0.5}, 0.0),
        ("11", {"X": 1.0, "O": 0.0}, 1.0),
        (["5", "1 or 2"], {"X": 1.0, "O": 0.0}, 1.0),
        ([""], {"X": 0.0, "O": 1.0}, 1.0),
    ],
)
def test_a_game_is_won_drawn_or_forfeited(moves: Any, earned: Any, forfeited: float) -> None:
    trace = play(list(moves))
    assert rewards(trace) == earned
    assert metrics(trace) == {"lost": 0.0, "forfeited": forfeited}
    assert [role.trained for role in trace.roles.values()] == [True, True]
    assert trace.stop_reason is vf.StopReason.TERMINATED


def test_an_empty_cell_shows_its_number() -> None:
    trace = play(["5", "1", "9", "x"])
    [x, o] = trace.lineages
    assert [m.content for m in x.messages[1:]] == [
        *("1 2 3\n4 5 6\n7 8 9", "5", "O 2 3\n4 X 6\n7 8 9", "9"),
    ]
    assert o.messages[-2].content == "O 2 3\n4 X 6\n7 8 X"


def test_training_games_begin_with_legal_moves_that_nobody_has_won_by() -> None:
    tasks = [*TicTacToe(openings=6).tasks("train")]
    moves = Counter[int]()
    for task in tasks:
        board = task.info["board"]
        places = {side: {n + 1 for n in range(9) if board[n] == side} for side in "XO"}
        assert 0 <= len(places["X"]) - len(places["O"]) <= 1
        assert not any(win <= each for win in WINS for each in places.values())
        moves[len(places["X"]) + len(places["O"])] += 1
    assert sorted(moves) == [0, 1, 2, 3, 4, 5, 6]
    assert {task.info["board"] for task in TicTacToe(openings=6).tasks("eval")} == {"123456789"}


def test_perfect_play_never_loses() -> None:
    for index in range(20):
        trace = play(random_legal(index), "eval", index, eval_opponent="perfect")
        assert trace.roles["XO"[index % 2]].reward <= 0.5


def test_perfect_play_wins_what_can_be_won() -> None:
    """An edge in answer to a corner loses, whatever follows."""
    environment = TicTacToe(opponents={"perfect": "perfect"})
    info = {"split": "train", "opponent": "perfect", "side": "O", "board": "XO3456789"}
    task = vf.Task("t", "", answer="", info=info)
    for seed in range(10):
        model = vf.ScriptedModel(random_legal(seed))
        trace = asyncio.run(vf.rollout(environment, task, model, seed=seed))
        assert rewards(trace) == {"X": 1.0, "O": 0.0}


def random_legal(seed: int) -> Any:
    rng = random.Random(seed)
    return lambda messages: rng.choice([c for c in messages[-1].content.split() if c.isdigit()])


def test_the_policy_plays_both_sides_in_turn_against_another() -> None:
    for index, side in enumerate("XOXO"):
        trace = play(random_legal(index), "eval", index)
        assert trace.roles[side].player == "policy"
        assert [name for name, role in trace.roles.items() if role.trained] == [side]
        assert metrics(trace)["lost"] == float(trace.reward == 0)


def test_every_opponent_of_a_pool_gets_its_share_of_both_sides() -> None:
    pool: dict[str, Any] = {"itself": "policy", "random": "random", "old": {"checkpoint": "tiny"}}
    tasks = TicTacToe(opponents=pool, num_train=60).tasks("train")
    met = Counter((task.info["opponent"], task.info["side"]) for task in tasks)
    assert met == {(name, side): 10 for name in pool for side in "XO"}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"openings": 7}, "openings must be from 0 to 6"),
        ({"opponents": {}}, "a table of opponents by name"),
        ({"opponents": {"a": "pefect"}}, r"opponents\.a = 'pefect': write 'policy', 'random'"),
        ({"eval_opponent": "best"}, "eval_opponent = 'best'"),
        ({"opponents": {"a": {"modle": "x"}}}, r"opponents\.a.*modle"),
        ({"opponents": {"a": {"checkpoint": "runs/none/x"}}}, r"opponents\.a\.checkpoint.*no such"),
        ({"eval_opponent": {"checkpoint": "tiny", "temprature": 1}}, "temprature"),
    ],
)
def test_a_wrong_argument_is_named(args: dict[str, Any], words: str) -> None:
    with pytest.raises(vf.ConfigError, match=words):
        asyncio.run(TicTacToe(**args).check())


def test_a_run_in_place_of_its_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(vf.ConfigError, match=r"is a run: name one of its checkpoints.*best"):
        FrozenModel(str(tmp_path))


def test_a_frozen_checkpoint_answers_with_its_own_tokens() -> None:
    """Greedily, it says what the model's own ``generate`` says."""
    messages = [vf.Message("user", "How much is 2 plus 3?")]
    conversation = vf.Conversation(messages)
    sampling = vf.Sampling(max_tokens=12, temperature=0.0)
    reply = asyncio.run(FrozenModel("tiny").respond(conversation, sampling))
    folder = resolve_model("tiny")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": messages[0].content}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    expected = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0]
    assert conversation.branches[0].token_ids == expected.tolist()
    assert reply.completion_tokens == len(expected) - prompt["input_ids"].shape[1]
