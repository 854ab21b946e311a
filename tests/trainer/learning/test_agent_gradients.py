"""One episode, however many conversations are made of it: one gradient, and one price."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch

import vf
from tests.inference.endpoint.rollout_talk import Texts, opened, say, token_model
from tests.trainer.learning.losses.test_losses_update import gradients
from vf.traces.trace import Branch, Score, Trace
from vf.trainer.learning.batches.batch import Sample, build_samples
from vf.trainer.learning.policy import Policy
from vf.trainer.run.group import Group
from vf.trainer.settings.config import TrainerArgs

REWARDS = (0.7, 0.1)
SAID = ["I will think about tea.", "Green tea it is, then.", "Pour it at 80 degrees."]
ASKED = "Go on."


class Talk(vf.Environment):
    """Says the same after every answer."""

    max_turns = len(SAID)

    def step(self, reply: vf.Message) -> vf.Step:
        return vf.Step(ASKED)


def native(*said: str) -> Trace:
    """Return an episode of three turns, played by the rollout loop."""
    model = token_model(Texts(said or SAID))
    return asyncio.run(vf.rollout(Talk(), vf.Task("t", "Tea?"), model))


def summarised() -> Trace:
    """Return the same episode with a summary behind the first and the second answer."""

    class Compacts(Talk):
        context = vf.Compact(at=0.01, tokens=400)

    model = token_model(Texts([SAID[0], "He likes tea.", SAID[1], "It is green.", SAID[2]]))
    sampling = vf.Sampling(64)
    return asyncio.run(vf.rollout(Compacts(), vf.Task("t", "Tea?"), model, sampling=sampling))


def delegated() -> Trace:
    """Return an episode of three turns, the second of which is a sub-agent's."""

    class Asks(Talk):
        tools = [vf.SubAgent("look", "Looks something up.")]

        async def step(self, reply: vf.Message) -> vf.Step:  # type: ignore[override]
            return await self.run_tools(reply)

    call = '<tool_call>\n{"name": "look", "arguments": {"task": "tea"}}\n</tool_call>'
    model = token_model(Texts([call, "It is green.", "Green tea."]))
    return asyncio.run(vf.rollout(Asks(), vf.Task("t", "Tea?"), model))


def agents(*, leaves: bool = False) -> Trace:
    """Return the same episode, played by an agent.

    Args:
        leaves: Whether it asks again from its first and from its second answer, with two more
            answers: three conversations, two of which begin with a copy.
    """

    async def work() -> Trace:
        async with opened(token_model(Texts([*SAID, "Black tea.", "No tea."]))) as (
            _,
            agent,
            trace,
        ):
            trace.task = vf.Task("t", "Tea?")
            messages: list[dict[str, Any]] = [{"role": "user", "content": "Tea?"}]
            for _ in SAID:
                await say(agent, messages)
                messages.append({"role": "user", "content": ASKED})
            for place in (2, 4) if leaves else ():
                await say(agent, [*messages[:place], {"role": "user", "content": "Again."}])
        return trace

    return asyncio.run(work())


def scored(policy: Policy, trace: Trace, reward: float, costs: list[float]) -> Trace:
    """Give a rollout a reward, and logprobs of a sampler that nearly is the policy."""
    rng = random.Random(0)
    for branch in trace.branches:
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([branch.token_ids])).logits[0]
        every = logits.log_softmax(-1)
        for place, sampled in enumerate(branch.loss_mask):
            if sampled:
                near = float(every[place - 1, branch.token_ids[place]])
                branch.logprobs[place] = near + rng.uniform(-0.3, 0.3)
    costs += [0.0] * (len(trace.turns) - len(costs))
    trace.score = Score(reward, reward, turn_costs={"late": costs})
    return trace


def made(**args: Any) -> Policy:
    """Return a policy in float64: of single precision are the sampled logprobs alone."""
    torch.manual_seed(0)
    settings = {"max_seq_len": 512, "max_prompt_len": 64, "use_lora": False} | args
    settings |= {"learning_rate": 1e-12, "max_grad_norm": 1e9}
    policy = Policy("tiny", TrainerArgs(**settings))
    policy.model.double()
    return policy


def batch_of(traces: list[Trace], args: TrainerArgs) -> list[Sample]:
    [batch] = build_samples([Group(traces[0].task, traces)], args)
    return batch


def by_the_formula(policy: Policy, traces: list[Trace]) -> dict[str, torch.Tensor]:
    """Return the gradient of −Σ w·exp(log p − log q)·A over the sampled tokens, in float64."""
    args, model = policy.args, deepcopy(policy.model)
    model.zero_grad()
    sizes = [sum(map(sum, (b.loss_mask for b in trace.branches))) for trace in traces]
    weights = {
        "token": [1 / sum(sizes)] * 2,
        "sequence": [1 / (2 * size) for size in sizes],
        "fixed": [1 / (2 * args.max_seq_len)] * 2,
    }[args.loss_normalisation]
    gain = REWARDS[0] - REWARDS[1]
    # The second turn of the first rollout cost 0.2, which from the third on is not ahead any more.
    gains = [gain, gain, gain + 0.2] if args.credit == "turn" else [gain]
    loss = torch.zeros((), dtype=torch.float64)
    for trace, weight, sign in zip(traces, weights, (0.5, -0.5), strict=True):
        for branch in trace.branches:
            every = model(input_ids=torch.tensor([branch.token_ids])).logits[0].log_softmax(-1)
            for place, sampled in enumerate(branch.loss_mask):
                if sampled:
                    turn = min(branch.turn_index[place], len(gains) - 1)
                    logprob = every[place - 1, branch.token_ids[place]]
                    ratio = (logprob - branch.logprobs[place]).exp()
                    loss = loss - weight * ratio * sign * gains[turn]
    torch.autograd.backward(loss)
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_an_agents_episode_is_the_native_one() -> None:
    theirs, ours = agents(), native()
    assert theirs.branches == ours.branches
    assert [turn.completion_tokens for turn in theirs.turns] == [
        turn.completion_tokens for turn in ours.turns
    ]


PLAYS: dict[str, tuple[Callable[[], Trace], int]] = {
    "one conversation": (agents, 1),
    "three": (partial(agents, leaves=True), 3),
    "summaries": (summarised, 3),
    "sub-agent": (delegated, 2),
}
# Every play with both kinds of credit, and with two of the normalisations.
QUICK = {
    ("one conversation", "token", "turn"),
    ("one conversation", "fixed", "trace"),
    ("three", "sequence", "turn"),
    ("three", "token", "trace"),
    ("summaries", "fixed", "turn"),
    ("summaries", "sequence", "trace"),
    ("sub-agent", "sequence", "turn"),
    ("sub-agent", "token", "trace"),
}


@pytest.mark.parametrize(
    ("name", "normalisation", "credit"),
    [
        pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow)
        for case in product(PLAYS, ("token", "sequence", "fixed"), ("trace", "turn"))
    ],
)
def test_the_gradient_is_that_of_the_formula(name: str, normalisation: str, credit: str) -> None:
    play, branches = PLAYS[name]
    policy = made(loss_normalisation=normalisation, credit=credit)
    traces = [
        scored(policy, play(), REWARDS[0], [0.0, 0.2]),
        scored(policy, native("No.", "I said no.", "Never."), REWARDS[1], []),
    ]
    assert len(traces[0].branches) == branches
    expected = by_the_formula(policy, traces)
    found = gradients(policy, batch_of(traces, policy.args))
    assert found.keys() == expected.keys()
    gaps = torch.cat([(found[name] - each).flatten() for name, each in expected.items()])
    size = torch.cat([each.flatten() for each in expected.values()]).norm()
    assert gaps.norm() <= 1e-5 * size


def test_what_conversations_share_is_computed_once_and_each_token_trained_on_once() -> None:
    policy = made()
    one, three = agents(), agents(leaves=True)
    first, *copies = three.branches
    traces = [
        scored(policy, each, reward, []) for each, reward in zip((three, one), REWARDS, strict=True)
    ]
    done = policy.update(batch_of(traces, policy.args))
    assert done.tokens == one.completion_tokens + three.completion_tokens
    assert done.processed_tokens == 2 * len(first) + sum(map(len, copies))
    new = [len(branch) - shared(branch, first) for branch in copies]
    assert done.computed_tokens == len(first) + sum(new)


def shared(branch: Branch, other: Branch) -> int:
    pairs = enumerate(zip(branch.token_ids, other.token_ids, strict=False))
    return next(place for place, (ours, theirs) in pairs if ours != theirs)
