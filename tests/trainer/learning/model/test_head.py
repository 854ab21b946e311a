"""Log-probabilities from hidden states in chunks, against one plain softmax."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vf.trainer.learning.model.head import head_logprobs

POSITIONS, WIDTH, VOCABULARY, TOKENS = 23, 8, 37, 31


class Scaled(torch.nn.Module):
    """A head that is more than a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits that are capped."""
        return 2.0 * torch.tanh(self.inner(hidden))


HEADS: dict[str, Any] = {
    "plain": lambda: torch.nn.Linear(WIDTH, VOCABULARY, bias=False),
    "frozen": lambda: torch.nn.Linear(WIDTH, VOCABULARY, bias=False).requires_grad_(False),
    "bias": lambda: torch.nn.Linear(WIDTH, VOCABULARY),
    "module": Scaled,
}


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Positions in no order, some predicting several tokens, one of them none."""
    hidden = torch.randn(POSITIONS, WIDTH, requires_grad=True)
    rows = torch.randint(POSITIONS - 1, (TOKENS,))
    return hidden, rows, torch.randint(VOCABULARY, (TOKENS,))


@pytest.mark.parametrize("entropy_gradient", [False, True])
@pytest.mark.parametrize("chunk_logits", [1, 5 * VOCABULARY, 10**6])
@pytest.mark.parametrize("kind", HEADS)
def test_values_and_gradients_are_those_of_one_softmax(
    kind: str, chunk_logits: int, entropy_gradient: bool
) -> None:
    torch.manual_seed(0)
    head = HEADS[kind]()
    hidden, rows, targets = inputs()
    every = torch.log_softmax(head(hidden) / 0.7, dim=-1)
    expected = every[rows, targets], -(every.exp() * every).sum(-1)[rows]
    found = head_logprobs(
        head,
        hidden,
        rows,
        targets,
        0.7,
        entropy_gradient=entropy_gradient,
        chunk_logits=chunk_logits,
    )[:2]
    weights = torch.randn(2, TOKENS)
    leaves = [hidden, *(p for p in head.parameters() if p.requires_grad)]

    def gradients(values: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        loss = (values[0] * weights[0]).sum()
        if entropy_gradient:
            loss = loss + (values[1] * weights[1]).sum()
        return torch.autograd.grad(loss, leaves)

    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert found[1].requires_grad == entropy_gradient
    for ours, theirs in zip(gradients(found), gradients(expected), strict=True):
        torch.testing.assert_close(ours, theirs)


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes how many elements the largest tensor had, forward and backward."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self.elements = max([self.elements, *made])
        return out


@pytest.mark.parametrize("kind", HEADS)
def test_no_tensor_of_tokens_by_vocabulary_is_ever_made(kind: str) -> None:
    head, (hidden, rows, targets) = HEADS[kind](), inputs()
    make: Any = Largest
    with make() as largest:
        logprobs, *_ = head_logprobs(head, hidden, rows, targets, 1.0, chunk_logits=4 * VOCABULARY)
        torch.autograd.backward(logprobs.sum())
    # A chunk, or the gradient of the weights.
    assert largest.elements <= max(4, WIDTH) * VOCABULARY < POSITIONS * VOCABULARY


@pytest.mark.parametrize("kind", HEADS)
def test_nothing_to_predict_is_fine(kind: str) -> None:
    none = torch.zeros(0, dtype=torch.long)
    hidden = torch.zeros(0, WIDTH, requires_grad=True)
    logprobs, entropy, *_ = head_logprobs(HEADS[kind](), hidden, none, none, 1.0)
    assert logprobs.shape == entropy.shape == (0,)
    torch.autograd.backward(logprobs.sum())
    assert hidden.grad is not None


def test_a_reduced_precision_head_has_float32_logits() -> None:
    torch.manual_seed(0)
    head = HEADS["frozen"]().to(torch.bfloat16)
    hidden, rows, targets = inputs()
    small = hidden.detach().bfloat16().requires_grad_()
    found, *_ = head_logprobs(head, small, rows, targets, 1.0, chunk_logits=100)
    logits = torch.nn.functional.linear(small.float(), head.weight.float())
    expected = logits.log_softmax(-1)[rows, targets]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)
    (ours,) = torch.autograd.grad(found.sum(), small)
    (theirs,) = torch.autograd.grad(expected.sum(), small)
    torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)
