"""`vf-rl --profile`: where the time of one step goes, as a table and as a trace."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from vf.runtime.errors import TrainingError
from vf.trainer.learning.batches.batch import MicroBatch
from vf.trainer.learning.passes import unwatched
from vf.trainer.learning.policy import Policy
from vf.trainer.tinker_backend.policy import local_policy

if TYPE_CHECKING:
    from rich.table import Table

    from vf.trainer.rl_trainer import RLTrainer


@dataclass(frozen=True, slots=True)
class Work:
    """What a micro-batch asks of the model.

    Attributes:
        tokens: T, computed tokens: padding counts, and a shared prefix counts once.
        predictions: Positions that the head runs on.
        pairs: How many pairs of a token and one that it attends to.
    """

    tokens: int
    predictions: int
    pairs: int

    @classmethod
    def of(cls, batch: MicroBatch) -> Work:
        """Return what a micro-batch asks, packed or padded as it is."""
        if (tree := batch.tree) is not None:
            pairs = 0
            for segment in tree.segments:
                own = segment.end - segment.start
                pairs += own * (own + 1) // 2 + own * (segment.last - segment.end)
            return cls(len(tree), len(tree.predictors), pairs)
        rows, columns = batch.input_ids.shape
        predictions = int(batch.loss_mask[:, 1:].sum())
        return cls(rows * columns, predictions, rows * columns * (columns + 1) // 2)


@dataclass(frozen=True, slots=True)
class ModelCost:
    """The floating-point operations that an update needs, by a dense model's shapes.

    A weight of a matrix takes part in one multiplication and one addition for each token in the
    forward pass, and in as many again for the gradient of its input, and for its own gradient if it
    is trained: 6·N·T for N trained weights and T tokens (Kaplan et al. 2020, "Scaling Laws for
    Neural Language Models", §2.1). The attention's products are counted as in Chowdhery et al.
    2022, "PaLM", appendix B, but only between tokens that see each other. As there, what is
    computed a second time to save memory does not count. Of a mixture of experts, all experts are
    counted.

    Attributes:
        weights: Number of weights of all matrices but the embedding and the head, with adapters.
        trained: How many of these have a gradient.
        head: Weights of the head.
        head_trained: How many of these have a gradient.
        attention: Query heads × their width, summed over the layers.
    """

    weights: int
    trained: int
    head: int
    head_trained: int
    attention: int

    @classmethod
    def of(cls, model: Any) -> ModelCost:
        """Return the cost of a causal language model of transformers'."""
        text = model.config.get_text_config()
        head = model.get_output_embeddings().weight
        apart = {id(head), id(model.get_input_embeddings().weight)}
        matrices = [p for p in model.parameters() if p.dim() > 1 and id(p) not in apart]
        width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        return cls(
            weights=sum(p.numel() for p in matrices),
            trained=sum(p.numel() for p in matrices if p.requires_grad),
            head=head.numel(),
            head_trained=head.numel() * head.requires_grad,
            attention=text.num_hidden_layers * text.num_attention_heads * width,
        )

    def forward(self, work: Work, *, adapter: bool = True) -> int:
        """Return the FLOPs of a forward pass.

        Args:
            work: The work that it is done for.
            adapter: Whether trained weights take part; an adapter does not in the reference's pass.
        """
        weights = self.weights if adapter else self.weights - self.trained
        linear = weights * work.tokens + self.head * work.predictions
        return 2 * linear + 4 * self.attention * work.pairs

    def backward(self, work: Work) -> int:
        """Return the FLOPs of a backward pass."""
        own = 2 * (self.trained * work.tokens + self.head_trained * work.predictions)
        return self.forward(work) + 4 * self.attention * work.pairs + own


ROLLOUTS = ("generate", "environment", "reward")
TRAINING = ("reference", "forward", "backward", "optimizer")
LARGEST_MATMUL = 8192  # three bfloat16 matrices of it take 400 MB
LONG_ENOUGH = 0.05  # seconds of one product, so that starting it does not count


@dataclass(slots=True)
class Row:
    """A part of the step.

    Attributes:
        name: Which.
        seconds: Wall time.
        tokens: Sampled in ``generate``, computed in the others; None where it makes no sense.
        flops: Floating-point operations; None where they are not known.
    """

    name: str
    seconds: float = 0.0
    tokens: int | None = None
    flops: int | None = None

    def add(self, seconds: float, tokens: int | None, flops: int | None) -> None:
        """Count another micro-batch, or the same one again."""
        self.seconds += seconds
        if tokens is not None and flops is not None:
            self.tokens = (self.tokens or 0) + tokens
            self.flops = (self.flops or 0) + flops


@dataclass(frozen=True, slots=True)
class StepProfile:
    """One profiled step; with several trainer processes, the first one's part in it.

    Attributes:
        step: Which.
        rows: The parts, in order. Their seconds add up to the step's.
        matmul_rate: What a large matrix product reaches on the device, in FLOP/s.
        how: The product, in words.
        trace: The file for Chrome and Perfetto.
        metrics: The step's metrics.
    """

    step: int
    rows: list[Row]
    matmul_rate: float
    how: str
    trace: Path
    metrics: Mapping[str, float]

    def table(self) -> Table:
        """Return the table for a terminal."""
        from rich.table import Table

        table = Table(
            title=f"step {self.step}",
            caption=f"matmul rate: {_si(self.matmul_rate)}FLOP/s ({self.how})",
        )
        table.add_column("phase")
        for name in ("seconds", "tokens", "FLOPs", "FLOP/s", "of matmul rate"):
            table.add_column(name, justify="right")
        trained = Row("model passes")
        for row in self.rows:
            table.add_row(*self._cells(row))
            if row.flops is not None:
                trained.seconds += row.seconds
                trained.flops = (trained.flops or 0) + row.flops
        table.add_section()
        table.add_row(*self._cells(trained))
        table.add_row(*self._cells(Row("step", sum(row.seconds for row in self.rows))))
        return table

    def _cells(self, row: Row) -> list[str]:
        cells = [row.name, f"{row.seconds:.3f}", "" if row.tokens is None else f"{row.tokens:,}"]
        if row.flops is None or not row.seconds:
            return [*cells, "", "", ""]
        rate = row.flops / row.seconds
        return [*cells, _si(row.flops), _si(rate), f"{rate / self.matmul_rate:.1%}"]


class Recorder:
    """Times the parts of a policy's updates, and records them for the trace.

    It waits for the device where a part begins and ends, so that its work is counted where it was
    asked for. The profiler starts with the first part: it does not see rollouts.

    Args:
        policy: The policy, which reports every part until the recorder is closed.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._cost = ModelCost.of(policy.weights.module)
        self._device: torch.device = policy.accelerator.device
        self._profiler: profile | None = None
        self.rows: dict[str, Row] = {}
        self.own_seconds = 0.0
        policy.passes.phase = self._phase

    @contextmanager
    def _phase(self, name: str, batch: MicroBatch | None) -> Iterator[None]:
        if name in TRAINING:
            self._start()
        if self._profiler is None:
            yield  # a step that has nothing to train on still publishes
            return
        _wait(self._device)
        started = time.perf_counter()
        with record_function(f"vf-rl: {name}"):
            yield
            _wait(self._device)
        seconds = time.perf_counter() - started
        row = self.rows.setdefault(name, Row(name))
        if batch is None:
            row.add(seconds, None, None)
        else:
            work = Work.of(batch)
            row.add(seconds, work.tokens, self._flops(name, work))

    def _flops(self, name: str, work: Work) -> int:
        if name == "backward":
            return self._cost.backward(work)
        with_adapter = name == "forward" or not self._policy.args.use_lora
        return self._cost.forward(work, adapter=with_adapter)

    def _start(self) -> None:
        if self._profiler is not None:
            return
        started = time.perf_counter()
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else it says when it starts
        activities = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(activities=activities)
        self._profiler.start()
        self.own_seconds = time.perf_counter() - started

    def close(self, path: Path | None = None) -> bool:
        """Stop, write the trace if a path is given, and return whether there was one to write."""
        self._policy.passes.phase = unwatched
        if self._profiler is None:
            return False
        self._profiler.stop()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._profiler.export_chrome_trace(str(path))
        return True


def profile_step(trainer: RLTrainer) -> StepProfile:
    """Train a step to warm up, and one under the profiler; write its trace and return the profile.

    Nothing is evaluated and no checkpoint is saved. Steps that have nothing to teach do not count.

    Args:
        trainer: One that has not begun to train.

    Raises:
        ConfigError: If the model is on a server.
        TrainingError: If ``max_steps`` went by without two steps to learn from, or too many
            rollouts failed.
        EngineError: If the engine died.
    """
    policy = local_policy(trainer.policy, "--profile")
    device, dtype = policy.accelerator.device, policy.weights.module.dtype
    rate, how = matmul_rate(device, dtype)  # before rollouts begin, which may be on this device
    trainer.display.start(trainer.step_count, trainer.args.max_steps)
    warm = False
    while trainer.step_count < trainer.args.max_steps:
        recorder = Recorder(policy) if warm else None
        path = trainer.folder.profiles / f"step-{trainer.step_count + 1}.json.gz"
        try:
            metrics = trainer.step()
        except BaseException:
            if recorder is not None:
                recorder.close()
            raise
        trainer.display.step(metrics)
        trainer.folder.append_metrics(metrics)
        if recorder is not None and recorder.close(path):
            rows = _rows(recorder, metrics)
            return StepProfile(trainer.step_count, rows, rate, how, path, metrics)
        warm = warm or bool(metrics.get("tokens/trained"))
    raise TrainingError(
        f"max_steps = {trainer.args.max_steps} went by without two steps to learn from: the "
        "rewards of each group were all equal; raise max_steps, or make the task easier or harder"
    )


def _rows(recorder: Recorder, metrics: Mapping[str, float]) -> list[Row]:
    """Put together what the step's clock and the recorder have seen."""
    rows = [Row(name, metrics[f"time/{name}"]) for name in ROLLOUTS]
    rows[0].tokens = int(metrics.get("tokens/sampled", 0))
    training = [recorder.rows[name] for name in TRAINING if name in recorder.rows]
    packing = metrics["time/train"] - sum(r.seconds for r in training) - recorder.own_seconds
    rows += [*training, Row("other training", max(0.0, packing))]
    rows.append(Row("publish", metrics["time/publish"]))
    others = sum(metrics[f"time/{name}"] for name in ("evaluate", "save", "wait"))
    return [*rows, Row("waiting", others)]


def matmul_rate(device: torch.device, dtype: torch.dtype) -> tuple[float, str]:
    """Measure what a product of two large square matrices reaches.

    They grow until one product takes 50 ms or they have 8,192 rows; the best of ten counts.

    Returns:
        FLOP/s, and the product in words.
    """
    size = 512
    while True:
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        torch.matmul(left, right)  # libraries choose their kernel in the first call
        seconds = min(_seconds(left, right) for _ in range(10))
        if seconds >= LONG_ENOUGH or size >= LARGEST_MATMUL:
            words = f"{size} × {size}, {str(dtype).removeprefix('torch.')}, {device.type}"
            return 2 * size**3 / seconds, words
        size *= 2


def _seconds(left: torch.Tensor, right: torch.Tensor) -> float:
    _wait(left.device)
    started = time.perf_counter()
    torch.matmul(left, right)
    _wait(left.device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _si(value: float) -> str:
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:.0f} "
