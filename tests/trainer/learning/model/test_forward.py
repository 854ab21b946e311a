"""Log-probabilities through every kind of head and every kind of layer, against plain logits."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.trainer.learning.families import BY_NAME, VOCABULARY
from tests.trainer.learning.losses.test_losses_update import gradients as update_gradients
from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import MicroBatch, Sample, micro_batches
from vf.trainer.learning.batches.packing import pack
from vf.trainer.learning.model import head
from vf.trainer.learning.model.forward import Forward
from vf.trainer.learning.model.self_test import choose_forward
from vf.trainer.learning.policy import Policy
from vf.trainer.settings.config import TrainerArgs

WIDTH = 64  # of the models
CHUNK = 4 * VOCABULARY  # logits at once, in these tests


def forks(seed: int = 0) -> list[Sample]:
    """Return samples of two groups; each group has a prompt, and some of it a first turn too."""
    rng = random.Random(seed)

    def ids(low: int, high: int) -> list[int]:
        return [rng.randrange(8, VOCABULARY) for _ in range(rng.randint(low, high))]

    made = []
    for _ in range(2):
        prompt, turn = ids(20, 30), ids(17, 20)
        for begin in (prompt, prompt, prompt + turn, prompt + turn):
            branch = Branch()
            branch.add_context(begin, 0)
            sampled = ids(1, 25)
            branch.add_sampled(sampled, [-5.0] * len(sampled), [0] * len(sampled), 0)
            made.append(Sample(branch, rng.uniform(-1, 1)))
    return made


def one_batch(packed: bool, samples: list[Sample]) -> MicroBatch:
    (batch,) = pack(samples, 10**6) if packed else micro_batches(samples, 10**6)
    return batch


def alone(model: Any, batch: MicroBatch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log p and entropy from transformers' own logits, one row at a time."""
    logprobs, entropies = [], []
    for row, length in enumerate(batch.attention_mask.sum(1).tolist()):
        ids, mask = batch.input_ids[row, :length], batch.loss_mask[row, 1:length]
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float() / temperature
        every = logits.log_softmax(-1)
        logprobs.append(every.gather(1, ids[1:, None])[mask, 0])
        entropies.append(-(every.exp() * every).sum(-1)[mask])
    return torch.cat(logprobs), torch.cat(entropies)


def gradients(
    model: Any, values: tuple[torch.Tensor, torch.Tensor]
) -> dict[str, torch.Tensor | None]:
    weights = torch.linspace(-1.0, 1.0, len(values[0]))
    loss = (values[0] * weights).sum() + 0.1 * (values[1] * weights).sum()
    named = dict(model.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return dict(zip(named, found, strict=True))


def check(forward: Forward, batch: MicroBatch) -> None:
    """Compare log-probabilities, entropies and gradients with rows alone."""
    model = forward.model
    values = alone(model, batch, 0.9)
    expected = gradients(model, values)
    with forward.active():
        found = forward(batch, 0.9, entropy_gradient=True)
        grads = gradients(model, found[:2])
    torch.testing.assert_close(found[0], values[0], rtol=0, atol=3e-5)
    torch.testing.assert_close(found[1], values[1], rtol=0, atol=3e-5)
    for name, gradient in expected.items():
        if gradient is not None:
            ours = grads[name]
            assert ours is not None, name
            assert (ours - gradient).norm() <= 1e-4 * gradient.norm() + 1e-6, name


class Rows(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes of how many rows the largest tensor over the vocabulary was, forward and backward."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.shape[-1:] == (VOCABULARY,):
                self.most = max(self.most, leaf.numel() // VOCABULARY)
        return out


HEADS = {
    "Llama 3": "linear",
    "Qwen3": "linear",  # tied
    "Granite": "model",  # divided
    "Cohere (Command R)": "model",  # scaled
    "Gemma 2": "model",  # capped
    "Phi-3, Phi-4 (LongRoPE)": "linear",
    "Llama 4": "linear",  # two models deep
}


@pytest.mark.parametrize(
    ("name", "packing"),
    [
        *((name, True) for name in HEADS),
        ("Qwen3", False),
        ("Gemma 2", False),
        *(
            pytest.param(name, False, marks=pytest.mark.slow)
            for name in HEADS
            if name not in ("Qwen3", "Gemma 2")
        ),
    ],
)
def test_logits_are_the_models_own_and_never_there_at_once(
    name: str, packing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = BY_NAME[name].model()
    forward = choose_forward(model, 20, packing=packing)
    assert forward.head == HEADS[name]
    monkeypatch.setattr(head, "CHUNK_LOGITS", CHUNK)
    batch = one_batch(forward.how == "packed", forks())
    trained = int(batch.loss_mask.sum())
    make: Any = Rows
    with forward.active(), make() as rows:
        logprobs = forward(batch, 1.0).logprobs
        torch.autograd.backward(logprobs.sum())
    assert rows.most <= WIDTH < trained  # a chunk of four, or the head's matrix
    check(forward, batch)


MIXERS: dict[str, int] = {  # how many modules carry a state
    "Qwen3-Next": 1,
    "Qwen3.5 (text)": 1,
    "LFM2": 1,
    "Falcon-H1": 2,
    "Nemotron 3": 1,
}


@pytest.mark.parametrize("name", MIXERS)
def test_layers_that_carry_a_state_compute_rows_apart(name: str) -> None:
    model = BY_NAME[name].model()
    forward = choose_forward(model, 100)
    assert forward.how == "packed"
    assert forward.rows is not None
    assert len(forward.rows.mixers) == MIXERS[name]
    batch = one_batch(True, forks())
    assert batch.computed < 0.7 * int(batch.attention_mask.sum())  # the rest shares
    check(forward, batch)
    check(Forward(model, "packed", forward.head), one_batch(True, forks(1)[:1]))


def test_a_step_in_micro_batches_has_the_gradient_of_padded_rows(tmp_path: Path) -> None:
    """With activations computed again, and a budget that counts what the rows take."""
    BY_NAME["Qwen3-Next"].model().save_pretrained(tmp_path)
    found = []
    for packing in (True, False):
        limits: Any = {"max_seq_len": 80, "max_prompt_len": 40, "micro_batch_tokens": 170}
        args = TrainerArgs(**limits, packing=packing, use_lora=False, gradient_checkpointing=True)
        policy = Policy(str(tmp_path), args)
        assert policy.forward.how == ("packed" if packing else "padded")
        for batch in policy.budget.pack(forks(), packed=packing, share=True):
            assert int(batch.attention_mask.sum()) <= 170
        found.append(update_gradients(policy, forks()))
    packed, padded = found
    for name, gradient in padded.items():
        assert (packed[name] - gradient).norm() <= 1e-4 * gradient.norm() + 1e-6, name
