"""The bundled Kuhn poker, and what it is played against."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from itertools import islice
from typing import Any

import pytest

import vf
from vf.environments.bundled.kuhn_poker import KuhnPoker


def play(cards: str, moves: list[str]) -> vf.Trace:
    info = {"split": "train", "opponent": "itself", "role": "first", "cards": [*cards]}
    task = vf.Task("t", "", answer="", info=info)
    return asyncio.run(vf.rollout(KuhnPoker(), task, vf.ScriptedModel(moves)))


@pytest.mark.parametrize(
    ("cards", "moves", "first"),
    [  # chips that the first player wins; Kuhn 1950, table I
        ("KQ", ["pass", "pass"], 1),
        ("JQ", ["pass", "pass"], -1),
        ("JQ", ["bet", "pass"], 1),
        ("KJ", ["bet", "bet"], 2),
        ("QK", ["bet", "bet"], -2),
        ("KJ", ["pass", "bet", "pass"], -1),
        ("KQ", ["pass", "bet", "bet"], 2),
        ("JQ", ["pass", "bet", "bet"], -2),
        ("QJ", ["Bet", " PASS\n"], 1),
        ("KJ", ["check"], -2),
        ("JK", ["bet", "I bet"], 2),
        ("KJ", ["pass", "bet", ""], -2),
    ],
)
def test_a_game_is_paid_by_its_rules(cards: str, moves: list[str], first: int) -> None:
    trace = play(cards, moves)
    rewards = {name: role.reward for name, role in trace.roles.items()}
    assert rewards == {"first": (2 + first) / 4, "second": (2 - first) / 4}
    assert trace.stop_reason is vf.StopReason.TERMINATED
    legal = {move.strip().lower() for move in moves} <= {"bet", "pass"}
    assert ("forfeited_by" in trace.info) is not legal


def test_nobody_sees_the_other_card() -> None:
    first, second = play("JK", ["pass", "bet", "pass"]).lineages
    assert [m.content for m in first.messages[1:]] == [
        *("You hold J.", "pass", "The other player bets. You hold J.", "pass")
    ]
    assert [m.content for m in second.messages[1:]] == [
        "The other player passes. You hold K.",
        "bet",
    ]


def test_every_deal_comes_equally_often_in_each_role_and_to_each_opponent() -> None:
    pool: dict[str, Any] = {"itself": "policy", "random": "random"}

    def kinds(seed: int) -> list[tuple[str, str, str]]:
        infos = [task.info for task in KuhnPoker(pool, num_train=72, seed=seed).tasks("train")]
        return [(each["opponent"], each["role"], "".join(each["cards"])) for each in infos]

    assert set(Counter(kinds(0)).values()) == {3}
    assert len({*kinds(0)}) == 2 * 2 * 6
    assert kinds(0) != kinds(1)


def average(games: int, script: Any) -> float:
    """Return the chips that a player wins against the equilibrium, half of them in each role."""
    environment = KuhnPoker(eval_opponent="equilibrium", num_eval=games)
    tasks = [*environment.tasks("eval")]
    done = asyncio.run(vf.evaluate(environment, vf.ScriptedModel(script), tasks=tasks))
    chips = [trace.score.metrics["chips"] for trace in done.traces if trace.score is not None]
    return float(sum(c or 0.0 for c in chips) / len(tasks))


@pytest.mark.slow
@pytest.mark.gate
def test_no_undominated_player_wins_or_loses_against_the_equilibrium() -> None:
    """Folding a jack and calling with a king: whatever else it does, it wins 0 chips on average."""
    rng = random.Random(0)

    def move(messages: list[vf.Message]) -> str:
        *_, heard, _, _, card = ["", *messages[-1].content.rstrip(".").split()]
        if heard == "bets.":
            return {"J": "pass", "K": "bet"}.get(card, rng.choice(["bet", "pass"]))
        if card == "Q":
            return "pass"
        return "bet" if (card, heard) == ("K", "passes.") else rng.choice(["bet", "pass"])

    assert average(1200, move) == pytest.approx(0.0, abs=0.14)  # 3.5 standard errors


@pytest.mark.slow
@pytest.mark.gate
def test_a_random_player_loses_against_the_equilibrium() -> None:
    rng = random.Random(0)
    assert average(600, lambda _: rng.choice(["bet", "pass"])) < -0.1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"eval_opponent": "perfect"}, "eval_opponent = 'perfect': write 'policy', 'random' or 'e"),
        ({"opponents": {}}, "kuhn-poker: opponents = {}: write a table"),
    ],
)
def test_a_wrong_argument_is_named(args: dict[str, Any], words: str) -> None:
    with pytest.raises(vf.ConfigError, match=words):
        KuhnPoker(**args)


def test_the_policy_plays_both_roles_in_turn_against_another() -> None:
    environment = KuhnPoker(num_eval=12)
    roles = Counter[str]()
    for task in islice(environment.tasks("eval"), 12):
        trace = asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(["bet", "bet"])))
        [mine] = [name for name, role in trace.roles.items() if role.player == "policy"]
        assert mine == task.info["role"]
        roles[mine] += 1
    assert roles == {"first": 6, "second": 6}
