"""The forward KL to a teacher's likeliest tokens, against loops in float64."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.trainer.learning.forked_samples import forked_samples
from tests.trainer.learning.losses.test_losses_update import assert_equal, policy, updated
from tests.trainer.learning.model.test_head import HEADS, VOCABULARY, Largest, inputs
from tests.trainer.learning.test_policy import samples
from tests.trainer.learning.test_teacher import teacher as teacher
from vf.inference.vllm.admin import Admin
from vf.runtime.errors import ConfigError, TrainingError
from vf.testing import FakeServer, Response
from vf.trainer.learning.batches.batch import Sample, collate
from vf.trainer.learning.batches.overlong import fit
from vf.trainer.learning.batches.packing import pack
from vf.trainer.learning.batches.top_tokens import Likeliest
from vf.trainer.learning.memory.out_of_memory import Budget, Work, unpack
from vf.trainer.learning.model.forward import token_logprobs
from vf.trainer.learning.model.head import head_logprobs, pick
from vf.trainer.learning.teacher import TeacherServer, check_ids
from vf.trainer.settings.config import TrainerArgs


def divergence(p: torch.Tensor, q: torch.Tensor, k: int) -> torch.Tensor:
    """Return Σ p log(p / q) over the k likeliest to p, and over the rest as one."""
    order = p.argsort(descending=True)
    inside, outside = order[:k], order[k:]
    total = (p[inside] * (p[inside] / q[inside]).log()).sum()
    if len(outside):
        rest = p[outside].sum()
        total = total + rest * (rest / q[outside].sum()).log()
    return total


@pytest.mark.parametrize("entropy_gradient", [False, True])
@pytest.mark.parametrize(
    ("k", "chunk_logits"), [(5, 1), (1, 10 * VOCABULARY), (VOCABULARY - 1, 10**6), (37, 10**6)]
)
@pytest.mark.parametrize("kind", HEADS)
def test_values_and_gradients_are_those_of_float64(
    kind: str, chunk_logits: int, k: int, entropy_gradient: bool
) -> None:
    torch.manual_seed(0)
    head, (hidden, rows, targets) = HEADS[kind](), inputs()
    beliefs = (3.0 * torch.randn(len(hidden), VOCABULARY)).log_softmax(-1)
    weights = torch.randn(3, len(rows))
    if not entropy_gradient:
        weights[1] = 0.0

    exact = HEADS[kind]().double()
    exact.load_state_dict(head.state_dict())
    given = hidden.detach().double().requires_grad_()
    every = (exact(given) / 0.7).log_softmax(-1)
    p = beliefs.double().exp()
    kls = torch.stack([divergence(p[row], every[row].exp(), k) for row in rows.tolist()])
    entropy = -(every.exp() * every).sum(-1)[rows]
    loss = (every[rows, targets] * weights[0] + entropy * weights[1] + kls * weights[2]).sum()
    of = [given, *(p for p in exact.parameters() if p.requires_grad)]
    slopes = torch.autograd.grad(loss, of)

    taught = Likeliest.of(beliefs, k).take(rows)
    how: dict[str, Any] = {"entropy_gradient": entropy_gradient, "chunk_logits": chunk_logits}
    chunked = head_logprobs(head, hidden, rows, targets, 0.7, taught=taught, **how)
    by_row = taught.by_row(rows, len(hidden))
    whole = pick(head(hidden) / 0.7, rows, targets, None, by_row, gradient=entropy_gradient)
    leaves = [hidden, *(p for p in head.parameters() if p.requires_grad)]
    for found in (chunked, whole):
        assert found.teacher_kl is not None
        assert (found.teacher_kl - kls).abs().max() < 1e-5
        values = torch.stack([found.logprobs, found.entropy, found.teacher_kl])
        ours = torch.autograd.grad((values * weights).sum(), leaves)
        for slope, expected in zip(ours, slopes, strict=True):
            assert (slope - expected).abs().max() < 2e-5


def test_a_policy_that_is_far_too_sure_is_drawn_back_to_the_rest() -> None:
    """What is left of 1 is rounding by then, and so is not what the loss is computed from."""
    logits = torch.zeros(1, 30)
    logits[0, 3] = 24.0  # all else together: 1e-9
    logits.requires_grad_()
    beliefs = torch.full((1, 30), 0.1 / 29).log()
    beliefs[0, 3] = torch.log(torch.tensor(0.9))
    taught = Likeliest.of(beliefs, 1)
    nothing = torch.zeros(1, dtype=torch.long)
    kl = pick(logits, nothing, nothing, None, taught, gradient=False).teacher_kl
    assert kl is not None
    [slope] = torch.autograd.grad(kl.sum(), logits)
    exact = logits.detach().double()
    expected = divergence(beliefs[0].double().exp(), exact[0].softmax(-1), 1)
    assert kl.item() == pytest.approx(expected.item(), rel=1e-5)
    assert slope[0, 3] == pytest.approx(1.0 - 0.9, rel=1e-4)
    assert slope[0, 4] == pytest.approx(-0.1 / 29, rel=1e-4)


@pytest.mark.parametrize("kind", HEADS)
def test_no_tensor_of_tokens_by_vocabulary_is_made(kind: str) -> None:
    head, (hidden, rows, targets) = HEADS[kind](), inputs()
    taught = Likeliest.of(torch.randn(len(hidden), VOCABULARY).log_softmax(-1), 3).take(rows)
    make: Any = Largest
    with make() as largest:
        how: dict[str, Any] = {"taught": taught, "chunk_logits": 8 * VOCABULARY}
        found = head_logprobs(head, hidden, rows, targets, 1.0, **how)
        assert found.teacher_kl is not None
        torch.autograd.backward(found.teacher_kl.sum())
    assert largest.elements <= 8 * VOCABULARY < len(hidden) * VOCABULARY


@pytest.mark.parametrize("chunk_logits", [1, 10**6])
@pytest.mark.parametrize("kind", HEADS)
def test_a_head_names_its_likeliest_tokens(kind: str, chunk_logits: int) -> None:
    torch.manual_seed(0)
    head, (hidden, rows, targets) = HEADS[kind](), inputs()
    with torch.no_grad():
        how: dict[str, Any] = {"likeliest": 4, "chunk_logits": chunk_logits}
        found = head_logprobs(head, hidden, rows, targets, 0.7, **how)
        every = (head(hidden) / 0.7).log_softmax(-1)
    assert found.likeliest is not None
    torch.testing.assert_close(found.logprobs, every[rows, targets])
    for place, row in enumerate(rows.tolist()):
        best = every[row].argsort(descending=True)[:4]
        assert found.likeliest.ids[place].tolist() == best.tolist()
        torch.testing.assert_close(found.likeliest.logprobs[place], every[row][best])


FORWARD: dict[str, Any] = {"teacher_loss": "forward_kl", "teacher_top_k": 7, "teacher_coef": 0.7}


@pytest.mark.parametrize(
    ("packing", "use_lora"),
    [
        (True, True),
        (False, False),
        pytest.param(True, False, marks=pytest.mark.slow),
        pytest.param(False, True, marks=pytest.mark.slow),
    ],
)
def test_the_gradient_is_that_of_a_loop_over_tokens(
    teacher: Path, packing: bool, use_lora: bool
) -> None:
    """With shared prefixes, in micro-batches, at a temperature of its own, beside the rewards."""
    settings: dict[str, Any] = {
        **FORWARD,
        "teacher_model": str(teacher),
        "teacher_reward_coef": 0.5,  # which samples have in their advantage already
        "temperature": 0.8,
        "max_seq_len": 128,
        "micro_batch_tokens": 128,
        "packing": packing,
        "use_lora": use_lora,
    }
    made, batch = policy(**settings), forked_samples(1)
    other = AutoModelForCausalLM.from_pretrained(teacher).double()
    made.model.double()
    total = sum(sum(sample.branch.loss_mask[1:]) for sample in batch)
    loss, kls = torch.zeros((), dtype=torch.float64), 0.0
    for sample in batch:
        ids = torch.tensor([sample.branch.token_ids])
        with torch.no_grad():
            taught = (other(input_ids=ids).logits[0] / 0.8).softmax(-1)
        logits = made.model(input_ids=ids).logits[0] / 0.8
        for t in range(1, len(sample)):
            if not sample.branch.loss_mask[t]:
                continue
            logprobs = logits[t - 1].log_softmax(-1)
            kl = divergence(taught[t - 1], logprobs.exp(), 7)
            ratio = (logprobs[sample.branch.token_ids[t]] - sample.branch.logprobs[t]).exp()
            loss = loss + (0.7 * kl - ratio * sample.advantage) / total
            kls += kl.item() / total
    made.model.zero_grad()
    torch.autograd.backward(loss)
    named = made.model.named_parameters()
    expected = {name: p.grad.float() for name, p in named if p.grad is not None}
    made.model.zero_grad()
    made.model.float()
    known = made.with_teacher_logprobs(batch)
    found, stats = updated(made, known)
    assert_equal(found, expected)
    assert stats.kl_teacher_forward == pytest.approx(kls, rel=1e-4)
    assert stats.loss == pytest.approx(loss.item(), rel=1e-3)
    assert stats.kl_teacher_v1 != 0.0


def test_a_policy_learns_what_its_teacher_thinks(teacher: Path) -> None:
    made = policy(
        **FORWARD, teacher_model=str(teacher), use_lora=False, learning_rate=1e-4, max_steps=100
    )
    known = made.with_teacher_logprobs([replace(each, advantage=0.0) for each in samples()])
    distances = [made.update(known).kl_teacher_forward for _ in range(6)]
    assert distances[-1] < 0.3 * distances[0]


def taught_samples(k: int = 3) -> list[Sample]:
    """Return samples with likeliest tokens of their own."""
    torch.manual_seed(0)
    found = []
    for sample in samples():
        count = sum(sample.branch.loss_mask[1:])
        beliefs = torch.randn(count, 512).log_softmax(-1)
        found.append(replace(sample, likeliest=Likeliest.of(beliefs, k)))
    return found


def test_likeliest_tokens_stay_with_their_tokens_in_batches_that_are_cut() -> None:
    batch = taught_samples()
    by_ids = {tuple(each.branch.token_ids): each.likeliest for each in batch}

    def same(ones: list[Sample]) -> bool:
        pairs = [(each.likeliest, by_ids[tuple(each.branch.token_ids)]) for each in ones]
        assert all(ours is not None and theirs is not None for ours, theirs in pairs)
        return all(torch.equal(ours.ids, theirs.ids) for ours, theirs in pairs if ours and theirs)

    assert same(unpack(collate(batch)))
    [micro] = pack(batch, 10**6)
    assert same(unpack(micro))
    held = micro.likeliest
    parts = Budget(60).cut([Work(micro, likeliest=held)], share=True)
    assert len(parts) > 1
    assert same([each for part in parts for each in unpack(part.batch)])
    for part in parts:
        assert part.likeliest is not None
        assert part.batch.likeliest is not None
        assert torch.equal(part.likeliest.ids, part.batch.likeliest.ids)


def test_a_sample_that_is_cut_keeps_the_first() -> None:
    args = TrainerArgs(max_seq_len=20, max_prompt_len=8, long_sequences="truncate")
    batch = taught_samples()
    kept, cut = fit(batch, args)
    assert cut
    for sample in kept:
        assert sample.likeliest is not None
        assert len(sample.likeliest) == sum(sample.branch.loss_mask[1:])
    collate(kept)


def prompt_logprobs(model: Any, body: dict[str, Any]) -> Response:
    """Answer as vLLM does: the k likeliest by their rank, and the prompt's token behind them."""
    ids, k = body["prompt"], body["prompt_logprobs"]
    with torch.no_grad():
        every = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    found: list[Any] = [None]
    for token, beliefs in zip(ids[1:], every[:-1], strict=True):
        ranked = beliefs.argsort(descending=True).tolist()
        named = {token: ranked.index(token) + 1, **{t: r + 1 for r, t in enumerate(ranked[:k])}}
        found.append({str(t): {"logprob": float(beliefs[t]), "rank": r} for t, r in named.items()})
    return Response({"choices": [{"text": "", "prompt_logprobs": found}]})


def test_a_server_says_the_same_as_a_teacher_beside_the_model(teacher: Path) -> None:
    made, batch = policy(**FORWARD, teacher_model=str(teacher)), samples()
    other = AutoModelForCausalLM.from_pretrained(teacher).float()

    async def ask() -> list[Sample]:
        async with FakeServer(lambda request: prompt_logprobs(other, request.body)) as server:
            args = TrainerArgs(**FORWARD, teacher_model="t", teacher_base_url=server.base_url)
            client = TeacherServer(args)
            try:
                return await client.ask(batch)
            finally:
                await client.close()

    for ours, theirs in zip(made.with_teacher_logprobs(batch), asyncio.run(ask()), strict=True):
        assert ours.likeliest is not None
        assert theirs.likeliest is not None
        assert ours.teacher_logprobs == pytest.approx(theirs.teacher_logprobs, abs=1e-4)
        assert torch.equal(ours.likeliest.ids, theirs.likeliest.ids)
        torch.testing.assert_close(
            ours.likeliest.logprobs, theirs.likeliest.logprobs, atol=1e-4, rtol=0
        )


def test_a_server_that_tells_too_few_tokens_is_refused_at_the_start() -> None:
    async def check() -> None:
        refusal = Response("Requested prompt logprobs of 50 exceeds 20", 400)
        async with FakeServer(refusal) as server:
            args = TrainerArgs(
                teacher_model="t",
                teacher_base_url=server.base_url,
                teacher_loss="forward_kl",
                teacher_top_k=50,
            )
            client = TeacherServer(args)
            await asyncio.to_thread(client._check_top_k, Admin(server.base_url), [1, 2, 3])

    with pytest.raises(ConfigError, match=r"--max-logprobs 50 or more.*exceeds 20"):
        asyncio.run(check())


def test_tokens_that_the_model_does_not_know_are_refused() -> None:
    with pytest.raises(TrainingError, match=r"the token \d+ is among the teacher_top_k"):
        check_ids(taught_samples(), 300)
    check_ids(taught_samples(), 512)


def test_a_pass_asks_for_nothing_that_it_was_not_told_to() -> None:
    made = policy()
    found = token_logprobs(made.model, collate(taught_samples()), 1.0)
    assert found.teacher_kl is None
    assert found.likeliest is None
