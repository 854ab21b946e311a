"""The routers' auxiliary loss against the formula, one row at a time in float64."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.learning.families import BY_NAME
from tests.trainer.learning.losses.test_losses_update import assert_equal, gradients
from tests.trainer.learning.test_policy import samples
from vf.runtime.errors import ConfigError
from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import Sample, micro_batches
from vf.trainer.learning.batches.packing import pack
from vf.trainer.learning.losses.router_loss import RouterLoss, find_routers
from vf.trainer.learning.model.forward import Forward
from vf.trainer.learning.policy import Policy
from vf.trainer.settings.config import TrainerArgs

WAYS = [("Qwen3-MoE", "padded"), ("Qwen3-MoE", "shared"), ("Phi-MoE", "padded")]
WAYS += [(name, "packed") for name in ("Mixtral", "gpt-oss", "MiniMax-M2", "Phi-MoE")]
WAYS += [("Qwen3.5-MoE", "shared")]
OTHERWISE = ["DeepSeek-V3, Kimi-K2", "GLM-4-MoE", "Llama 4 (text)", "Nemotron 3", "Gemma 4 MoE"]
CHOSEN = 2  # experts per token, in all of these
COEF = 0.3


def rows(*, prefix: int, lengths: Sequence[int] = (14, 9, 11)) -> list[Sample]:
    """Return sequences with so many first tokens in common, and no others."""
    generator = torch.Generator().manual_seed(3)
    start = list(range(200, 200 + prefix))
    out = []
    for place, length in enumerate(lengths):
        ids = [*start, 40 + place, *torch.randint(50, 200, (length,), generator=generator).tolist()]
        mask = [*[0] * (prefix + 1), *[1] * length]
        zeros = [0] * len(ids)
        out.append(Sample(Branch(ids, mask, [-5.0 * m for m in mask], zeros, zeros), 0.5))
    return out


def logits_of(model: Any, sample: Sample) -> torch.Tensor:
    """Return what the routers of all layers say of one sequence, ``[layers, T, E]``."""
    ids = torch.tensor([sample.branch.token_ids])
    found = model(input_ids=ids, use_cache=False, output_router_logits=True).router_logits
    return torch.stack(found)


def naive(logits: torch.Tensor) -> torch.Tensor:
    """E · Σ_e f_e · P_e over all layers' tokens, one expert at a time."""
    tokens = logits.flatten(0, -2)
    experts = tokens.shape[-1]
    loss = torch.zeros((), dtype=tokens.dtype)
    for expert in range(experts):
        better = (tokens > tokens[:, expert, None]).sum(-1)
        sent = (better < CHOSEN).to(tokens.dtype).mean()
        loss = loss + experts * sent * (tokens[:, expert].exp() / tokens.exp().sum(-1)).mean()
    return loss


def routers_gradient(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    torch.autograd.backward(loss)
    own = {id(parameter) for each in find_routers(model) for parameter in each.parameters()}
    found = {n: p.grad.clone() for n, p in model.named_parameters() if id(p) in own}
    assert found
    assert all(bool(gradient.any()) for gradient in found.values())
    return found


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_every_real_token_counts_once(name: str, way: str) -> None:
    model = BY_NAME[name].model()
    model.set_experts_implementation("eager")  # grouped products are in float32 at most
    model.double()
    batch = rows(prefix=60 if way == "shared" else 0)
    [micro] = micro_batches(batch, 10**6) if way == "padded" else pack(batch, 10**6)
    if micro.tree is not None:
        assert len(micro.tree) == sum(map(len, batch)) - (2 * 60 if way == "shared" else 0)
    each = [logits_of(model, sample) for sample in batch]
    if way == "shared":
        each[1:] = [logits[:, 60:] for logits in each[1:]]
    expected = naive(torch.cat(each, 1))
    slopes = routers_gradient(model, expected)

    forward = Forward(model, "padded" if way == "padded" else "packed", "linear")
    router_loss = RouterLoss(model, TrainerArgs(router_aux_loss_coef=COEF))
    with forward.active(), router_loss.watching():
        forward(micro, 1.0)
        found = router_loss(micro, 1 / sum(map(len, batch)))
    assert found is not None
    # Some norms and rotary positions still compute in float32.
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    got = routers_gradient(model, found)
    for key, slope in slopes.items():
        assert (got[key] - slope).norm() <= 3e-6 * slope.norm(), key


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("routed") / "base"
    BY_NAME["Qwen3-MoE"].model(vocab_size=512).save_pretrained(folder)
    return folder


def policy(base: Path, **args: Any) -> Policy:
    torch.manual_seed(0)
    settings = {"use_lora": False, "max_seq_len": 32, "max_prompt_len": 16, "max_grad_norm": 1e9}
    return Policy(str(base), TrainerArgs(**{**settings, **args}))


def gap(base: Path, batch: list[Sample], **args: Any) -> dict[str, torch.Tensor]:
    """Return what the coefficient adds to the gradient of an optimizer step."""
    without = gradients(policy(base, **args), batch)
    found = gradients(policy(base, router_aux_loss_coef=COEF, **args), batch)
    return {name: found[name] - without[name] for name in found}


@pytest.mark.parametrize(
    ("rows_each", "normalisation", "packing"),
    [(None, "token", True), (1, "token", False), (1, "sequence", True), (1, "fixed", True)],
)
def test_a_step_minimises_the_mean_over_its_micro_batches(
    base: Path, rows_each: int | None, normalisation: str, packing: bool
) -> None:
    args = {"loss_normalisation": normalisation, "micro_batch_size": rows_each, "packing": packing}
    made, batch = policy(base, router_aux_loss_coef=COEF, **args), samples()
    each = [logits_of(made.model, sample) for sample in batch]
    if rows_each is None:
        expected = naive(torch.cat(each, 1))
    else:  # every sequence by its tokens
        tokens = sum(map(len, batch))
        losses = torch.stack([naive(logits) for logits in each])
        expected = (losses * torch.tensor([len(sample) / tokens for sample in batch])).sum()
    made.model.zero_grad()
    torch.autograd.backward(COEF * expected)
    slopes = {n: p.grad.clone() for n, p in made.model.named_parameters() if p.grad is not None}
    made.model.zero_grad()
    assert any("gate.weight" in name for name in slopes)

    found = gap(base, batch, **args)
    for name, slope in slopes.items():
        assert (found[name] - slope).norm() <= 1e-4 * slope.norm() + 1e-6, name
    plain, stats = policy(base, **args).update(batch), made.update(batch)
    assert plain.router_aux_loss == 0
    assert stats.router_aux_loss == pytest.approx(float(expected), rel=1e-5)
    assert stats.loss == pytest.approx(plain.loss + COEF * float(expected), rel=1e-4)


@pytest.mark.parametrize("normalisation", ["token", "sequence"])
def test_parts_of_a_step_weigh_as_the_normalisation_has_it(base: Path, normalisation: str) -> None:
    args = {"loss_normalisation": normalisation, "router_aux_loss_coef": COEF}
    made, parts = policy(base, **args), [samples(1, count=1), samples(2, count=3)]
    shares = [sum(sum(each.branch.loss_mask) for each in part) for part in parts]
    shares = shares if normalisation == "token" else [1, 3]
    with torch.no_grad():
        logits = [torch.cat([logits_of(made.model, each) for each in part], 1) for part in parts]
        losses = [float(naive(each)) for each in logits]
    for part in parts:
        made.accumulate(part)
    mean = sum(s * loss for s, loss in zip(shares, losses, strict=True)) / sum(shares)
    assert made.finish().router_aux_loss == pytest.approx(mean, rel=1e-5)


def test_gradient_checkpointing_changes_nothing(base: Path) -> None:
    args = {"router_aux_loss_coef": COEF, "use_lora": True, "lora_rank": 4}
    plain = gradients(policy(base, **args), samples())
    assert_equal(gradients(policy(base, gradient_checkpointing=True, **args), samples()), plain)


def test_without_a_coefficient_nothing_is_seen(base: Path) -> None:
    made = policy(base)
    assert not any(router._forward_hooks for router in find_routers(made.model))
    assert made.router_loss(None, 1.0) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["Qwen3-Next", "Qwen3.5-MoE (text)", "Qwen3.5-MoE"])
def test_the_weight_of_the_shared_expert_is_not_a_router(name: str) -> None:
    with torch.device("meta"):
        model = BY_NAME[name].model()
    assert len(find_routers(model)) == model.config.get_text_config().num_hidden_layers


@pytest.mark.parametrize("name", ["Qwen3", *OTHERWISE])
def test_other_models_are_refused(name: str) -> None:
    with torch.device("meta"):
        model = BY_NAME[name].model()
    what = "has no routers" if name == "Qwen3" else "have no auxiliary loss in transformers"
    with pytest.raises(ConfigError, match=rf"trainer\.args\.router_aux_loss_coef: .*{what}"):
        find_routers(model)
