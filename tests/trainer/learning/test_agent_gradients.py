"""One episode, however many conversations an agent makes of it: one gradient, and one price."""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import pytest
import torch

from tests.trainer.learning.test_losses_update import gradients
from vf.traces.task import Task
from vf.traces.trace import Branch, Fork, Lineage, Score, Trace, Turn
from vf.trainer.learning import prefix_tree
from vf.trainer.learning.batch import Sample, build_samples
from vf.trainer.learning.policy import Policy
from vf.trainer.run.group import Group
from vf.trainer.settings.config import TrainerArgs

SIZES = (7, 5, 9)  # sampled tokens of the turns
REWARDS = (0.7, 0.1)


def native(policy: Policy, seed: int, reward: float) -> Trace:
    """Return an episode of three turns in one branch, sampled by nearly this policy."""
    rng, branch = random.Random(seed), Branch()

    def ids(count: int) -> list[int]:
        return [rng.randrange(512) for _ in range(count)]

    branch.add_context(ids(12), 0)
    for turn, size in enumerate(SIZES):
        branch.add_sampled(ids(size), [0.0] * size, [0] * size, turn)
        branch.add_context(ids(4), turn)
    with torch.no_grad():
        every = policy.model(input_ids=torch.tensor([branch.token_ids])).logits[0].log_softmax(-1)
    for place, sampled in enumerate(branch.loss_mask):
        if sampled:
            near = float(every[place - 1, branch.token_ids[place]])
            branch.logprobs[place] = near + rng.uniform(-0.3, 0.3)
    turns = [Turn(0, size, "stop", 0.0) for size in SIZES]
    costs = [0.0, 0.2, 0.1] if seed == 0 else [0.0] * 3
    score = Score(reward, reward, turn_costs={"late": costs})
    return Trace("test", Task("t", "?"), 0, branches=[branch], turns=turns, score=score)


def split(trace: Trace) -> Trace:
    """Return the same episode as an agent has it that leaves its conversation at every turn.

    Each branch begins with a copy of all that came before, which is not trained on again.
    """
    (whole,) = trace.branches
    out = deepcopy(trace)
    out.branches, out.forks, out.lineages = [], [], []
    for turn in range(len(SIZES)):
        begin = whole.turn_index.index(turn) if turn else 0
        end = len(whole) - whole.turn_index[::-1].index(turn)
        branch = Branch()
        branch.add_context(whole.token_ids[:begin], turn)
        for name in Branch.__slots__:
            getattr(branch, name).extend(getattr(whole, name)[begin:end])
        out.branches.append(branch)
        parent = turn - 1 if turn else None
        out.lineages.append(Lineage(branches=[turn], turns=[turn], parent=parent))
        out.forks += [Fork(turn, "asked again", "parallel")] * bool(turn)
    return out


def made(**args: Any) -> Policy:
    """Return a policy in float64: of single precision are the sampled logprobs alone."""
    torch.manual_seed(0)
    settings = {"max_seq_len": 128, "max_prompt_len": 64, "use_lora": False} | args
    settings |= {"learning_rate": 1e-12, "max_grad_norm": 1e9}
    policy = Policy("tiny", TrainerArgs(**settings))
    policy.model.double()
    return policy


def batch_of(traces: list[Trace], args: TrainerArgs) -> list[Sample]:
    [batch] = build_samples([Group(Task("t", "?"), traces)], args)
    return batch


def by_the_formula(policy: Policy, traces: list[Trace]) -> dict[str, torch.Tensor]:
    """Return the gradient of −Σ w·exp(log p − log q)·A over the sampled tokens, in float64."""
    args, model = policy.args, deepcopy(policy.model).double()
    model.zero_grad()
    [one, two] = traces
    tokens = sum(SIZES)
    weight = {
        "token": 1 / (2 * tokens),
        "sequence": 1 / (2 * tokens),
        "fixed": 1 / (2 * args.max_seq_len),
    }
    returns = [[reward] * 3 for reward in REWARDS]
    if args.credit == "turn":  # the second turn of the first has cost 0.2, and it is ahead no more
        returns[0][2] += 0.2
    loss = torch.zeros((), dtype=torch.float64)
    for trace, own, other in ((one, returns[0], returns[1]), (two, returns[1], returns[0])):
        (branch,) = trace.branches
        logits = model(input_ids=torch.tensor([branch.token_ids])).logits[0]
        every = logits.log_softmax(-1)
        for place, sampled in enumerate(branch.loss_mask):
            if sampled:
                turn = branch.turn_index[place]
                advantage = own[turn] - (own[turn] + other[turn]) / 2
                logprob = every[place - 1, branch.token_ids[place]]
                ratio = (logprob - branch.logprobs[place]).exp()
                loss = loss - weight[args.loss_normalisation] * ratio * advantage
    torch.autograd.backward(loss)
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture(autouse=True)
def _every_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """So short a beginning is shared, too."""
    monkeypatch.setattr(prefix_tree, "SEGMENT_COST", 0)
    monkeypatch.setattr(prefix_tree, "MERGE_COST", 0.0)


@pytest.mark.parametrize("credit", ["trace", "turn"])
@pytest.mark.parametrize("normalisation", ["token", "sequence", "fixed"])
def test_the_gradient_is_that_of_one_conversation(normalisation: str, credit: str) -> None:
    policy = made(loss_normalisation=normalisation, credit=credit)
    whole = [native(policy, seed, reward) for seed, reward in enumerate(REWARDS)]
    parted = [split(whole[0]), whole[1]]
    expected = by_the_formula(policy, whole)
    for traces in (whole, parted):
        found = gradients(policy, batch_of(traces, policy.args))
        assert found.keys() == expected.keys()
        gaps = torch.cat([(found[name] - each).flatten() for name, each in expected.items()])
        size = torch.cat([each.flatten() for each in expected.values()]).norm()
        assert gaps.norm() <= 1e-5 * size


def test_what_conversations_share_is_computed_once_and_each_token_trained_on_once() -> None:
    policy = made()
    whole = [native(policy, seed, reward) for seed, reward in enumerate(REWARDS)]
    parted = list(map(split, whole))
    one, many = (policy.update(batch_of(traces, policy.args)) for traces in (whole, parted))
    assert many.tokens == one.tokens == 2 * sum(SIZES)
    assert many.computed_tokens == one.computed_tokens
    assert many.processed_tokens > one.processed_tokens
