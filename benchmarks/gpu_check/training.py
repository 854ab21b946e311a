"""An optimizer step: its gradient, its memory, its speed, and what sharing prefixes saves."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from gpu_check.models import FAMILIES, QWEN3_06B, TINY, make_samples, save_random
from gpu_check.row import Row

from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.memory.trainer_memory import Shape, Surroundings, predict
from vf.trainer.learning.policy import Policy
from vf.trainer.settings.config import TrainerArgs

# Relative difference that rounding explains, of the loss and of the gradient as one vector. With
# float32 weights, products on CUDA are TF32: 11 significant bits; bfloat16 has 8.
TOLERANCE = {"float32": 1e-4, "tf32": 1e-2, "bf16": 0.05}
# Tokens a second of an optimizer step on 16k tokens of Qwen3-0.6B: prime-rl's, on one H100.
TO_BEAT, TO_BEAT_ON = {"full": 11_900, "lora": 13_300}, "H100"
# Peak memory over the plan's.
PLAN = (0.6, 1.05)
ROUNDS = 3
CUDA = torch.cuda.is_available()
GIB = 2**30


def gradient(family: str, mode: str, precision: str) -> Row:
    """Compare a step's loss and gradient with a plain loop's in float32 on the CPU."""
    how, settings = FAMILIES[family]
    check = f"step: {family} {mode} {precision}"
    samples = make_samples(2, 3, 24, 20, settings["vocab_size"])
    with tempfile.TemporaryDirectory() as folder:
        save_random(family, settings, Path(folder), sharpen=2.0)
        policy = Policy(folder, _args(44, mode, precision, micro_batch_tokens=128))
        state = policy.weights.trainable_state()
        if mode == "lora":  # an adapter begins with B = 0, which hides the gradient of A
            state = _spread(state)
            policy.weights.load_trainable_state(state)
        found: list[torch.Tensor] = []
        policy.optimizer.register_step_pre_hook(
            lambda *_: found.extend(_grad(each) for each in policy.weights.trained)
        )
        stats = policy.update(samples)
        loss, expected = plain_gradient(folder, policy, state, samples)
    theirs, ours = torch.cat(expected), torch.cat(found)
    figures: dict[str, float | int | str] = {
        "gradient off by": float((ours - theirs).norm() / theirs.norm()),
        "loss off by": abs(stats.loss - loss) / abs(loss),
    }
    allowed = TOLERANCE["tf32" if CUDA and precision == "float32" else precision]
    if policy.forward.how != how:
        note = f"trained {policy.forward.how}, not {how}"
        return Row(check, False, figures, note)
    close = max(float(figures["gradient off by"]), float(figures["loss off by"])) <= allowed
    return Row(check, close, figures, f"{how}, {allowed:g} allowed")


def plain_gradient(
    folder: str, policy: Policy, state: dict[str, torch.Tensor], samples: Sequence[Sample]
) -> tuple[float, list[torch.Tensor]]:
    """Return the loss and its gradient on the CPU in float32, one sequence at a time.

    It is the mean over all trained tokens of −ratio·A. Of the library it uses nothing.

    Args:
        folder: The model's.
        policy: What is compared; of it the adapter's shape is taken.
        state: Its trained parameters by name.
        samples: The step's.

    Returns:
        The loss, and a flat float32 gradient for each trained parameter in order.
    """
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if policy.args.use_lora:
        model = get_peft_model(model, policy.model.peft_config["default"]).eval()
    named = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in state.items():
            named[name].copy_(value)
    count, total = sum(sum(sample.branch.loss_mask) for sample in samples), 0.0
    for sample in samples:
        ids = torch.tensor(sample.branch.token_ids)
        mask = torch.tensor(sample.branch.loss_mask, dtype=torch.bool)[1:]
        logprobs = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
        logprobs = logprobs.gather(1, ids[1:, None])[mask, 0]
        sampled = torch.tensor(sample.branch.logprobs)[1:][mask]
        loss = -sample.advantage * (logprobs - sampled).exp().sum() / count
        torch.autograd.backward(loss)
        total += float(loss.detach())
    return total, [_grad(named[name]) for name in state]


def memory(mode: str) -> Row:
    """Compare the peak of a step with the plan's, for all weights or an adapter."""
    tokens = 8192 if CUDA else 512
    config = QWEN3_06B if CUDA else TINY
    before = torch.cuda.memory_allocated() if CUDA else 0  # should be 0: nothing is left over
    with tempfile.TemporaryDirectory() as folder:
        shape = save_random("Qwen3", config, Path(folder))
        args = _args(tokens // 4, mode, "bf16" if CUDA else "float32", micro_batch_tokens=tokens)
        policy = Policy(folder, args)
    plan = _plan(shape, args, tokens)
    samples = make_samples(8, 1, tokens // 32, tokens // 4 - tokens // 32, shape.vocabulary)
    check = f"memory: {mode}"
    if not CUDA:
        policy.update(samples)
        return Row(check, None, {"plan MiB": plan / 2**20}, "measured on CUDA devices only")
    policy.update(samples[:1])  # from here on there are Adam's moments
    torch.cuda.reset_peak_memory_stats()
    policy.update(samples)
    peak = torch.cuda.max_memory_allocated()
    figures = {
        "plan GiB": plan / GIB,
        "peak GiB": peak / GIB,
        "peak / plan": peak / plan,
        "before GiB": before / GIB,
    }
    return Row(check, PLAN[0] <= peak / plan <= PLAN[1], figures, f"{PLAN[0]} to {PLAN[1]} allowed")


def _plan(shape: Shape, args: TrainerArgs, tokens: int) -> int:
    """Return the bytes of tensors that the plan predicts: without what torch's books leave out."""
    items = predict(shape, args, tokens, Surroundings(cuda=CUDA))
    return sum(size for name, size in items.items() if name != "CUDA and fragments")


def speed(mode: str) -> Row:
    """Time optimizer steps on 16k tokens of a random Qwen3-0.6B, without shared prefixes."""
    length, rows = (1024, 16) if CUDA else (64, 4)
    config = QWEN3_06B if CUDA else TINY
    with tempfile.TemporaryDirectory() as folder:
        shape = save_random("Qwen3", config, Path(folder))
        args = _args(length, mode, "bf16" if CUDA else "float32", micro_batch_tokens=length * rows)
        plan = _plan(shape, args, length * rows)
        recompute = CUDA and plan > 0.9 * torch.cuda.mem_get_info()[0]
        policy = Policy(folder, args.model_copy(update={"gradient_checkpointing": recompute}))
    samples = make_samples(rows, 1, length // 4, length - length // 4, shape.vocabulary)
    seconds, _ = _time(policy, samples)
    figures: dict[str, float | int | str] = {
        "tokens/s": length * rows / seconds,
        "tokens": length * rows,
        "recomputed": "yes" if recompute else "no",
    }
    check = f"speed: {mode}"
    if not CUDA:
        return Row(check, None, figures, "a tiny model, on a CPU")
    figures["peak GiB"] = torch.cuda.max_memory_allocated() / GIB
    bar = TO_BEAT[mode]
    if TO_BEAT_ON not in torch.cuda.get_device_name():
        return Row(check, None, figures, f"to beat on an {TO_BEAT_ON}: {bar:,}")
    return Row(check, length * rows / seconds >= bar, figures, f"to beat: {bar:,}")


def sharing() -> Row:
    """Time a step with shared prefixes and with plain packing; the gradient is the same."""
    prompt, completion = (1000, 200) if CUDA else (200, 40)
    precision = "bf16" if CUDA else "float32"
    seconds, norms = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        shape = save_random("Qwen3", QWEN3_06B if CUDA else TINY, Path(folder))
        samples = make_samples(2, 8, prompt, completion, shape.vocabulary)
        for share in (True, False):
            args = _args(prompt + completion, "lora", precision, micro_batch_tokens=9600)
            torch.manual_seed(0)  # of the adapter
            policy = Policy(folder, args.model_copy(update={"share_prefixes": share}))
            seconds[share], norms[share] = _time(policy, samples)
            del policy
    off = abs(norms[True] - norms[False]) / norms[False]
    figures = {
        "shared s": seconds[True],
        "plain s": seconds[False],
        "shared / plain": seconds[True] / seconds[False],
        "gradient norm off by": off,
    }
    good = seconds[True] < seconds[False] and off <= TOLERANCE[precision]
    return Row("shared prefixes: lora", good, figures, "must be faster than plain packing")


def _args(length: int, mode: str, precision: str, *, micro_batch_tokens: int) -> TrainerArgs:
    """Return settings under which a step's gradient is not clipped and its weights hardly move."""
    return TrainerArgs(
        use_lora=mode == "lora",
        bf16=precision == "bf16",
        gradient_checkpointing=False,
        learning_rate=1e-12,
        max_grad_norm=1e9,
        loss_normalisation="token",
        max_seq_len=length,
        max_prompt_len=length - 1,
        micro_batch_tokens=micro_batch_tokens,
    )


def _time(policy: Policy, samples: Sequence[Sample]) -> tuple[float, float]:
    """Return the median seconds of a step, and its gradient's norm."""
    taken, norm = [], 0.0
    for _ in range(1 + ROUNDS):  # the first warms up
        started = time.perf_counter()
        norm = policy.update(samples).grad_norm
        if CUDA:
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
    return median(taken[1:]), norm


def _spread(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return random values of the same names and shapes that are exact in bfloat16."""
    generator = torch.Generator().manual_seed(1)
    drawn = {name: torch.randn(each.shape, generator=generator) for name, each in state.items()}
    return {name: (0.05 * each).bfloat16().float() for name, each in drawn.items()}


def _grad(parameter: torch.nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad.detach().float().cpu().flatten()
