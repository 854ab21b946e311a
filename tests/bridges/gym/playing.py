"""Playing Gymnasium's games with scripts, and finding the shortest way to win them."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import vf
from vf.inference.models.scripted_model import Line

DRY = {"is_slippery": False}
# The newest version: it differs between versions of Gymnasium.
TAXI, CLIFF = (
    max(id for id in gymnasium.registry if id.startswith(f"{name}-v"))
    for name in ("Taxi", "CliffWalking")
)


def play(
    environment: vf.Environment, script: Any, *, split: Any = "train", index: int = 0
) -> vf.Trace:
    task = list(environment.tasks(split))[index]
    trace = asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(script)))
    assert trace.error is None, trace.error.traceback
    return trace


def shortest(env: Any, state: int) -> list[int]:
    """Return the actions of a shortest way to an end that pays, by breadth."""
    ways: deque[tuple[int, list[int]]] = deque([(state, [])])
    seen = {state}
    while ways:
        here, way = ways.popleft()
        for action, [(_, there, reward, over), *_] in env.P[here].items():
            if over and reward > 0:
                return [*way, int(action)]
            if there not in seen and not over:
                seen.add(there)
                ways.append((there, [*way, int(action)]))
    raise AssertionError("there is no way")


def solver(gymnasium_id: str, names: list[str], seed: int, **args: Any) -> list[str]:
    env = gymnasium.make(gymnasium_id, **args)
    state, _ = env.reset(seed=seed)
    actions = shortest(env.unwrapped, int(state))
    env.close()
    return [names[action] for action in actions]


LAKE = ["left", "down", "right", "up"]
CAB = ["south", "north", "east", "west", "pickup", "dropoff"]


def blackjack(messages: list[vf.Message]) -> Line:
    found = re.search(r"sum to (\d+)", messages[-1].content)
    assert found is not None
    return "I hit." if int(found[1]) < 17 else "I stick."


class Lights(gymnasium.Env[Any, Any]):
    """Actions of several dimensions."""

    observation_space = spaces.Dict({"on": spaces.MultiBinary(2), "heat": spaces.Box(0, 9, (1,))})

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self.action_space = action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return {"on": np.zeros(2, np.int8), "heat": np.array([1.5], np.float32)}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen = {"on": np.zeros(2, np.int8), "heat": np.array([0.25], np.float32)}
        return seen, 1.0, True, False, {}
