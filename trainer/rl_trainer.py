"""The trainer: one object with one readable step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vf.inference.token_model import TokenModel
from vf.traces.calling import call
from vf.traces.errors import ConfigError, TrainingError
from vf.traces.trace import Trace
from vf.trainer.collecting.background import BackgroundLoop
from vf.trainer.collecting.group import Group
from vf.trainer.collecting.orchestrator import Orchestrator
from vf.trainer.engines import build_engine, check_gap, probe
from vf.trainer.launch import leave_world
from vf.trainer.learning.batch import Sample, build_samples
from vf.trainer.learning.objective import UpdateStats
from vf.trainer.learning.policy import Policy
from vf.trainer.preflight import Plan
from vf.trainer.saving.checkpoint import (
    Progress,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from vf.trainer.saving.run_folder import RunFolder
from vf.trainer.watching.alarms import Alarms
from vf.trainer.watching.display import Display, SilentDisplay
from vf.trainer.watching.kl_alarm import observe_kl
from vf.trainer.watching.metrics import (
    Metrics,
    rollout_metrics,
    shaping_metrics,
    trace_metrics,
    update_metrics,
)
from vf.trainer.watching.report import write_report

log = logging.getLogger(__name__)

WAIT_SHARE = 0.2  # of the time that a step's rollouts took: waits above it are worth a note


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run ended.

    Attributes:
        steps: Training steps done.
        eval_before: Mean held-out reward before the first step, or None without evaluation.
        eval_after: Mean held-out reward after the last step.
        seconds: Wall time, earlier parts of a resumed run included.
        checkpoint: The last checkpoint.
    """

    steps: int
    eval_before: float | None
    eval_after: float | None
    seconds: float
    checkpoint: Path


class RLTrainer:
    """Trains a model in an environment.

    Use it as a context manager: leaving it stops the engine and everything in flight.

    Example::

        config, _ = load_config(Path("configs/quickstart.toml"))
        with RLTrainer(preflight(config), RunFolder(Path("runs/mine"))) as trainer:
            trainer.train()

    Args:
        plan: A checked config (:func:`~vf.trainer.preflight.preflight`).
        folder: The run's folder; it must have been created.
        display: Shows progress; nothing by default.

    Raises:
        ConfigError: The model cannot be loaded.
        EngineError: The engine does not start.
    """

    def __init__(self, plan: Plan, folder: RunFolder, display: Display | None = None) -> None:
        self.plan = plan
        self.args = plan.config.args
        self.folder = folder
        self.display = display or SilentDisplay()
        self.step_count = 0
        self._alarms = Alarms()
        self._earlier_seconds = 0.0
        self._started = time.perf_counter()
        self._closers: list[Callable[[], Any]] = []
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        from accelerate.utils import set_seed

        set_seed(self.args.seed)
        plan, inference = self.plan, self.plan.config.inference
        self.policy = Policy(plan.config.model, self.args)
        self._closers.append(self.policy.ranks.stop)
        leave_world()
        self.engine = build_engine(plan, self.policy, self.folder)
        self._closers.append(self.engine.stop)
        self.engine.start(self.display.waiting)
        log.info("engine %s at %s", inference.engine, self.engine.base_url)
        self._loop = BackgroundLoop()
        self._closers.append(self._loop.stop)
        self._loop.call(call(plan.environment.start), self._watch)
        self._sampler = self.engine.sampler(self.args.generation_timeout)
        self._closers.append(lambda: self._loop.call(self._sampler.close(), watch=lambda: None))
        model = TokenModel(
            self._sampler,
            plan.renderer,
            max_seq_len=self.args.max_seq_len,
            max_prompt_len=self.args.max_prompt_len,
            thinking_history=inference.thinking_history,
        )
        self.orchestrator = Orchestrator(
            plan.environment, model, plan.tasks, plan.eval_tasks, self.args, self.engine.serving
        )
        self.publish()

    def train(self) -> Summary:
        """Train to ``max_steps``, evaluating and saving on the way.

        Raises:
            TrainingError: Too many rollouts failed, or the loss is not finite.
            EngineError: The engine died.
        """
        args = self.args
        self.display.start(self.step_count, args.max_steps)
        if self.step_count == 0 and self._evaluates:
            self.folder.append_metrics({"step": 0, **self.evaluate()})
        while self.step_count < args.max_steps:
            metrics = self.step()
            last = self.step_count == args.max_steps
            if self._evaluates and (last or self.step_count % args.eval_steps == 0):
                metrics |= self.evaluate()
            self.folder.append_metrics(metrics)
            self.display.step(metrics)
            if last or self.step_count % args.save_steps == 0:
                self.save()
            write_report(self.folder, self.plan)
        return self.summary()

    def step(self) -> Metrics:
        """Do one training step: roll out, score, learn, publish. Returns its metrics."""
        self.step_count += 1
        times: dict[str, float] = {}
        with _timed(times, "generate"):
            groups = self.collect()
        with _timed(times, "train"):
            updates = self.learn(build_samples(groups, self.args, self.plan.environment.rubric))
        with _timed(times, "publish"):
            gap = self.publish()
        metrics: Metrics = {
            "step": self.step_count,
            **rollout_metrics(groups),
            **shaping_metrics(groups, self.args),
            **update_metrics(updates, reference=self.policy.reference is not None),
            "learning_rate": self.policy.learning_rate,
            "logprob_gap": gap,
            **{f"time/{name}": seconds for name, seconds in times.items()},
            "time/total": sum(times.values()),
        }
        metrics["tokens_per_s/generate"] = metrics.get("tokens/sampled", 0.0) / times["generate"]
        metrics["tokens_per_s/train"] = (
            sum(update.processed_tokens for update in updates) / times["train"]
        )
        self._report_signal(groups)
        self._report_waits(metrics)
        alarms, notes = self._alarms.observe(groups)
        kl_alarm, kl_notes = observe_kl(self._alarms.ringing, metrics, self.args)
        for note in [*notes, *kl_notes]:
            log.warning("step %d: %s", self.step_count, note)
            self.display.note(f"step {self.step_count}: {note}")
        return metrics | alarms | kl_alarm

    def collect(self) -> list[Group]:
        """Run this step's rollouts and write their traces."""
        done = 0
        with self.folder.step_traces(self.step_count) as store:

            def on_trace(trace: Trace) -> None:
                nonlocal done
                store.append(trace)
                done += trace.error is None
                self.display.rollouts(done, self.args.batch_size)
                _log_failure(trace)

            groups = self._loop.call(
                self.orchestrator.collect(self.step_count, on_trace), self._watch
            )
        shown = groups[0].traces
        if shown and (self.step_count - 1) % self.args.sample_steps == 0:
            self.display.sample(shown[0])
        return groups

    def learn(self, groups: list[list[Sample]]) -> list[UpdateStats]:
        """Take ``num_substeps`` optimizer steps, each on its share of the groups."""
        shares = [groups[i :: self.args.num_substeps] for i in range(self.args.num_substeps)]
        batches = [[sample for group in share for sample in group] for share in shares]
        with self.engine.training():
            return [self.policy.update(batch) for batch in batches if batch]

    def publish(self) -> float:
        """Have the engine sample from the weights as they are, and see that it does.

        Returns:
            How far its logprobs are from the trainer's on a probe, in nats.

        Raises:
            TrainingError: Farther than ``inference.logprob_tolerance``.
            EngineError: The weights could not be brought to it.
        """
        self.engine.publish(self.step_count)
        stops = self.plan.renderer.stop_token_ids
        probing = probe(self._sampler, self.policy, self.engine, self.plan.probe_ids, stops)
        gap = self._loop.call(probing, self._watch)
        check_gap(gap, self.plan.config.inference.logprob_tolerance, self.step_count)
        return gap

    def evaluate(self) -> Metrics:
        """Measure the model on the held-out tasks, and write the traces."""
        done, total = 0, len(self.plan.eval_tasks)
        with self.folder.eval_traces(self.step_count) as store:

            def on_trace(trace: Trace) -> None:
                nonlocal done
                done += 1
                store.append(trace)
                _log_failure(trace)
                self.display.rollouts(done, total, evaluating=True)

            result = self._loop.call(self.orchestrator.evaluate(on_trace), self._watch)
        scored = [trace for trace in result.traces if trace.reward is not None]
        if not scored:
            raise TrainingError("not one rollout of the held-out evaluation could be scored")
        metrics = {f"eval/{name}": value for name, value in trace_metrics(scored).items()}
        metrics["eval/rollouts/failed"] = result.errors
        metrics["eval/rollouts/unscored"] = result.unscored
        self.display.evaluation(self.step_count, metrics)
        return metrics

    def try_one(self) -> Trace:
        """Run one rollout of the first train task, to see that everything works together."""
        return self._loop.call(self.orchestrator.try_one(), self._watch)

    def save(self) -> Path:
        """Write a checkpoint of where the run stands."""
        cursor, alarms = self.orchestrator.cursor.position, self._alarms.state()
        progress = Progress(self.step_count, cursor, self.seconds, alarms)
        tokenizer = self.plan.renderer.tokenizer
        return save_checkpoint(self.folder.checkpoints, self.policy, tokenizer, progress)

    def resume(self) -> int:
        """Go back to the run's newest checkpoint, and return its step.

        Raises:
            ConfigError: There is none, or it does not fit.
        """
        checkpoint = latest_checkpoint(self.folder.checkpoints)
        if checkpoint is None:
            raise ConfigError(f"{self.folder.path} has no checkpoint to resume from")
        with self.engine.training():
            progress = load_checkpoint(checkpoint, self.policy)
        self.step_count = progress.step
        self.orchestrator.cursor.position = progress.cursor
        self._earlier_seconds = progress.seconds
        self._alarms = Alarms(**progress.alarms)
        self.publish()
        self.folder.rewind(self.step_count)
        return self.step_count

    def summary(self) -> Summary:
        """Return how the run went, from its own metrics."""
        evals = [
            line["eval/reward/mean"]
            for line in self.folder.read_metrics()
            if "eval/reward/mean" in line
        ]
        return Summary(
            steps=self.step_count,
            eval_before=evals[0] if evals else None,
            eval_after=evals[-1] if evals else None,
            seconds=self.seconds,
            checkpoint=latest_checkpoint(self.folder.checkpoints) or self.folder.checkpoints,
        )

    @property
    def seconds(self) -> float:
        """Wall time spent on the run so far."""
        return self._earlier_seconds + time.perf_counter() - self._started

    @property
    def _evaluates(self) -> bool:
        return self.args.eval_strategy == "steps"

    def _watch(self) -> None:
        """Raise if anything that rollouts depend on has died."""
        self.engine.check()

    def _report_signal(self, groups: list[Group]) -> None:
        uniform = [group for group in groups if group.uniform]
        if not any(group.traces for group in groups):
            self.display.note(
                f"step {self.step_count} taught nothing: the rubric left every rollout without a "
                "reward. See what its outcome returns None for."
            )
        elif len(uniform) == len(groups):
            rewards = sorted({reward for group in groups for reward in group.rewards})
            self.display.note(
                f"step {self.step_count} taught nothing: within each of the {len(groups)} groups "
                f"all rewards are equal ({', '.join(f'{r:g}' for r in rewards[:5])}). The task is "
                "too easy or too hard for the model, or the temperature too low."
            )
        elif uniform:
            log.info(
                "%d of %d groups had equal rewards and were skipped", len(uniform), len(groups)
            )

    def _report_waits(self, metrics: Metrics) -> None:
        wait = metrics.get("sandbox/wait_s_mean", 0.0)
        if wait > max(1.0, WAIT_SHARE * metrics["time/generate"]):
            self.display.note(
                f"in step {self.step_count}, rollouts waited for their sandboxes: {wait:.1f} s on "
                f"average, {metrics['sandbox/wait_s_max']:.1f} s at most. If the machine has room, "
                "raise env.args.sandbox.pool"
            )

    def close(self) -> None:
        """Stop the engine and all that is in flight. Safe to call twice."""
        self._closers.append(self.display.stop)  # it too may fail: its terminal may be gone
        while self._closers:
            closer = self._closers.pop()
            try:
                closer()
            except Exception:
                log.exception("while closing")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


def _log_failure(trace: Trace) -> None:
    if (error := trace.error) is not None:
        logging.getLogger("vf.environments").warning(
            "task %s failed, in the %s: %s\n%s",
            *(trace.task.id, error.boundary, error.message, error.traceback.rstrip()),
        )


@contextmanager
def _timed(times: dict[str, float], name: str) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        times[name] = time.perf_counter() - started
