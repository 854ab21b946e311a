"""The trainer: one object with one readable step."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Self

from vf.runtime.errors import TrainingError
from vf.trainer.cleanup_stack import CleanupStack
from vf.trainer.collecting.collector import Collector
from vf.trainer.learner import Learner
from vf.trainer.learning.batches.batch import Sample, build_samples
from vf.trainer.learning.batches.privileged_prompts import HasPrivilegedContext, Privileged
from vf.trainer.learning.batches.streaming import StepBatch, at_the_end
from vf.trainer.learning.objective import UpdateStats
from vf.trainer.processes.placement import open_fleet
from vf.trainer.run.display import Display
from vf.trainer.run.group import Group
from vf.trainer.run.metrics import Metrics
from vf.trainer.run.plan import Plan
from vf.trainer.run.run_folder import RunFolder
from vf.trainer.run.setup import Setup
from vf.trainer.run.summary import Summary
from vf.trainer.saving.checkpoint import Progress
from vf.trainer.saving.checkpoint_files import to_evaluate
from vf.trainer.saving.checkpoint_keeper import Keeper
from vf.trainer.settings.overlap import streams
from vf.trainer.watching.learned_log import LearnedLog
from vf.trainer.watching.records import Records
from vf.trainer.watching.step_clock import StepClock

log = logging.getLogger(__name__)

MOST_SKIPPED = 3  # training steps in a row without one finite optimizer step


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """The last finished step, while the weights are still the ones that it left.

    Attributes:
        progress: Where the run stands; saved if the run ends before the next step trains.
        repeat: The line of ``metrics.jsonl`` if the run was resumed and has to repeat the
            evaluation after it, which was interrupted.
    """

    progress: Progress
    repeat: Metrics | None = None


class RLTrainer:
    """Trains a model in one environment, or in several at once.

    Rollouts run in a thread of their own, ahead of training by ``max_steps_off_policy`` steps.
    Use the trainer as a context manager: leaving it stops the engine and everything in flight.

    Example::

        config, _ = load_config(Path("configs/quickstart.toml"))
        with RLTrainer(preflight(config), RunFolder(Path("runs/mine"))) as trainer:
            trainer.train()

    Args:
        plan: A checked config (:func:`~vf.trainer.preflight.preflight`).
        folder: The run's folder; it must have been created.
        display: Shows progress; nothing by default.

    Attributes:
        step_count: Training steps begun.
        learner: The model that learns, its engine, and the calls that a step is made of.
        policy: The learner's.
        engine: The learner's.
        collector: Runs the rollouts.

    Raises:
        ConfigError: If the model cannot be loaded.
        EngineError: If the engine does not start.
    """

    def __init__(self, plan: Plan, folder: RunFolder, display: Display | None = None) -> None:
        self.plan = plan
        self.args = plan.config.args
        self.folder = folder
        self.display = display or Display()
        self.step_count = 0
        self._records = Records(plan, folder, self.display)
        self._clock = StepClock(self._begin_part)
        self._earlier_seconds = 0.0
        self._started = time.perf_counter()
        self._streams = streams(plan.config)
        self._learned = LearnedLog(self.args.learned_groups)
        self._skipped = 0  # the last training steps, if none of theirs was finite
        self._finished: FinishedStep | None = None  # None once the next step changes the weights
        self._closing = CleanupStack()
        try:
            self._start()
        except BaseException:
            self.close(failed=True)
            raise

    def _start(self) -> None:
        from accelerate.utils import set_seed

        set_seed(self.args.seed)
        plan, folder = self.plan, self.folder
        for member in plan.environments:
            member.environment.artifacts = folder.path / "artifacts"
            if member.left_out:
                log.warning("left out of %s: %s", member.name, member.left_out)
        fleet = open_fleet(plan.config, plan.workers)
        self._closing.add(fleet.stop)
        setup = Setup.of(plan, folder, self._records.note, self.display.waiting, fleet)
        self.learner = Learner.of(setup)
        self._closing.add(self.learner.close)
        self.policy, self.engine = self.learner.policy, self.learner.engine
        log.info("engine %s at %s", plan.config.inference.engine, self.engine.base_url)
        self._keeper = Keeper(
            folder.checkpoints, policy=self.policy, plan=plan, note=self._records.note
        )
        self._closing.add(self._keeper.wait)
        self.collector = Collector(
            plan=plan,
            engine=self.engine,
            fleet=fleet,
            folder=folder,
            display=self.display,
            clock=self._clock,
            note=self._records.note,
        )
        self._closing.add(self.collector.stop)
        self.learner.publish(self.step_count)
        self._clock.lap()  # the start does not count for the first step

    def train(self) -> Summary:
        """Train to ``max_steps``, evaluating and saving on the way.

        If training ends early, by an error or Ctrl-C, the last finished step is saved first.

        Raises:
            TrainingError: If too many rollouts failed, or the loss stays not finite.
            EngineError: If the engine died.
            CheckpointError: If the last checkpoint could not be written.
        """
        self._records.open(self.step_count)
        self._open_ahead()
        try:
            if self._finished is not None and self._finished.repeat is not None:
                self._conclude(self._finished.repeat, again=True)
            elif self.step_count == 0 and self._evaluation_is_due:
                self._conclude({"step": 0})
            while self.step_count < self.args.max_steps:
                self._conclude(self.step())
        except BaseException:
            if self._finished is not None:
                self._keeper.rescue(self._finished.progress, self.seconds)
            raise
        self._keeper.wait()
        if self._keeper.unsaved is not None:
            raise self._keeper.unsaved
        return self.summary()

    def step(self) -> Metrics:
        """Do one training step: roll out, score, learn, publish.

        Returns:
            The step's metrics. :meth:`train` writes them down; you do, if you call this yourself.

        Raises:
            TrainingError: If too many rollouts failed, or the loss stays not finite.
            EngineError: If the engine died.
        """
        self.collector.open(self.step_count + 1, version=self.step_count)
        self.step_count += 1
        groups, updates = self._collect_and_learn()
        self.policy.position = self.step_count * self.args.updates_per_step
        self._check_skipped(updates)
        with self._clock.part("publish"), self.policy.passes.phase("publish", None):
            gap = self.learner.publish(self.step_count)
        self._open_ahead()
        others = {
            "learning_rate": self.policy.learning_rate,
            "logprob_gap": gap,
            **self.collector.orchestrator.mixture.metrics(),
        }
        return self._records.measure(self.step_count, groups, updates, self._clock.lap(), others)

    def _open_ahead(self) -> None:
        """Start the rollouts that may begin with the weights that are served now."""
        if self.step_count < self.args.max_steps:
            self.collector.open(self.step_count + 1, version=self.step_count)

    def _collect_and_learn(self) -> tuple[list[Group], list[UpdateStats]]:
        """Wait for the step's groups, and take its optimizer steps.

        With streaming, gradients of the first optimizer step are added up as groups finish.
        """
        groups: list[Group] = []
        updates: list[UpdateStats] = []
        batch = StepBatch(
            self.args.num_substeps, self.policy.filled if self._streams else at_the_end
        )
        self._learned.begin()
        for group in self.collector.arriving(self.step_count):
            groups.append(group)
            samples = self._learned.mark(group, self._build(group))
            if ready := batch.add(group.number, samples):
                with self._clock.part("train"):
                    self.learner.accumulate(ready)
        groups.sort(key=lambda group: group.number)
        left, shares = batch.shares()
        with self._clock.part("train"), self.learner.training():
            for samples in self._passes(left, shares) if shares else []:
                if samples:
                    self.learner.accumulate(samples)
                updates.append(self._finish())
            self._learned.write(self.folder.step_learned(self.step_count))
        return groups, updates

    def _passes(self, left: list[Sample], shares: list[list[Sample]]) -> list[list[Sample]]:
        """Return the samples of each optimizer step, which for the first are what is left."""
        later = [*shares[1:], *shares * (self.args.num_iterations - 1)]
        with_logprobs = iter(self.policy.with_old_logprobs(list(chain(*later))))
        return [left, *(list(islice(with_logprobs, len(share))) for share in later)]

    def _finish(self) -> UpdateStats:
        """Take an optimizer step."""
        finished, self._finished = self._finished, None
        update = self.learner.optim_step(self.policy.learning_rate)
        if self._learned.watching and (watch := self.policy.objective.watch):
            self._learned.update(watch.collect())
        if update.skipped:  # the weights have not changed
            self._finished = finished
        return update

    def _check_skipped(self, updates: Sequence[UpdateStats]) -> None:
        """Raise TrainingError if too many steps in a row were not finite."""
        if updates:
            self._skipped = self._skipped + 1 if all(update.skipped for update in updates) else 0
        if self._skipped == MOST_SKIPPED:
            raise TrainingError(
                f"the loss or its gradient norm was not finite in {MOST_SKIPPED} training steps in "
                f"a row, in the last {updates[-1].loss} and {updates[-1].grad_norm}; lower "
                "learning_rate, or look for rewards or logprobs gone wrong"
            )

    def _build(self, group: Group) -> list[Sample]:
        """Return the samples of a group, if it has anything to teach."""
        args = self.plan.args_of(group.environment)
        built = build_samples([group], args, temperature=args.temperature)
        if not built:
            return []
        [samples], seen = built, None
        if args.teacher_privileged:
            environment = self.plan.member(group.environment).environment
            assert isinstance(environment, HasPrivilegedContext)  # see check_privileged
            context = environment.privileged_context
            # Room is what the teacher was loaded with, not the environment's own.
            privileged = Privileged(self.plan.renderer, self.args)
            seen = privileged.samples(samples, group.traces, context)
        return self.learner.teacher.ask(samples, seen)

    def _conclude(self, metrics: Metrics, *, again: bool = False) -> None:
        """Conclude a step: evaluate if that is due, write its metrics, and save if that is due.

        The next step's rollouts run meanwhile. Its training waits, because it would change the
        weights that are evaluated.

        Args:
            metrics: The step's.
            again: Whether they are in the file already, without the evaluation.
        """
        if self.step_count:
            self.display.step(metrics)
        self._keeper.report()
        progress = self._progress()
        if self._evaluation_is_due:
            self.collector.begin_evaluation(self.step_count)
        self._finished = FinishedStep(progress)
        try:
            metrics = metrics | self.collector.end_evaluation()
        finally:  # a resumed run repeats an interrupted evaluation
            self.folder.append_metrics(metrics, again=again)
        self._records.tell(self.step_count, metrics)
        last = self.step_count == self.args.max_steps
        if self.step_count:
            reward = metrics.get("eval/reward/mean")
            best = reward is not None and self._keeper.is_best(reward)
            staying = best or last or self.step_count % self.args.save_steps == 0
            if staying or self._keeper.due:
                with self._clock.part("save"):
                    self._keeper.begin(self._progress(), best=best, rolling=not staying)
        self._records.update_report(final=last)

    def evaluate(self) -> Metrics:
        """Measure the model on the held-out tasks, and write the traces.

        Returns:
            Metrics whose names begin with ``eval/``.

        Raises:
            TrainingError: If too many rollouts failed, or none could be scored.
            EngineError: If the engine died.
        """
        self.collector.begin_evaluation(self.step_count)
        return self.collector.end_evaluation()

    def save(self) -> Path:
        """Write a checkpoint of where the run stands, and return its folder.

        Raises:
            CheckpointError: If it could not be written.
        """
        return self._keeper.save(self._progress())

    def resume(
        self,
        changed: Collection[str] = (),
        *,
        allow_changes: bool = False,
        checkpoint: str | None = None,
    ) -> int:
        """Go back to the run's newest checkpoint, and return its step.

        A run that ended before its first checkpoint starts again with step 0. Traces of what will
        be repeated are kept apart (:meth:`RunFolder.rewind`).

        Args:
            changed: Dotted names of settings that were changed on purpose.
            allow_changes: Resume even if the checkpoint is of other settings or another model.
            checkpoint: Name of an earlier checkpoint to go back to, such as ``step-20``.

        Raises:
            ConfigError: If it does not fit, and the differences are listed; or it is damaged.
        """
        with self.learner.training():
            progress = self._keeper.load(changed, allow_changes=allow_changes, name=checkpoint)
        if progress is None:
            self.folder.rewind(-1)
            return 0
        self.step_count = progress.step
        self._earlier_seconds = progress.seconds
        self._records.findings.alarms.load(progress.alarms)
        self.learner.publish(self.step_count)
        self._finished = None
        if (repeat := to_evaluate(self.folder, self.args, self.step_count)) is not None:
            self._finished = FinishedStep(progress, repeat)
        self.folder.rewind(self.step_count, evaluated=self._finished is None)
        self.collector.restore(progress.queue)
        self._clock.lap()  # nor does resuming count for the next step
        return self.step_count

    def _progress(self) -> Progress:
        return Progress(
            step=self.step_count,
            seconds=self.seconds,
            alarms=self._records.findings.alarms.state(),
            best_reward=self._keeper.best_reward,
            base=self._keeper.base,
            queue=self.collector.queue(),
        )

    def summary(self) -> Summary:
        """Return how the run went, from its ``metrics.jsonl``."""
        checkpoint = self._keeper.latest or self.folder.checkpoints
        lines = self.folder.read_metrics()
        return Summary.of(lines, self.step_count, seconds=self.seconds, checkpoint=checkpoint)

    @property
    def seconds(self) -> float:
        """Wall time spent on the run so far."""
        return self._earlier_seconds + time.perf_counter() - self._started

    @property
    def _evaluation_is_due(self) -> bool:
        return self.args.evaluates_after(self.step_count)

    def _begin_part(self, name: str) -> None:
        self.collector.watchdog.phase(name)
        self.display.phase(name)

    def close(self, *, failed: bool = False) -> None:
        """Stop the engine and everything in flight. Safe to call twice.

        Args:
            failed: Whether the run ends because something went wrong.
        """
        self._closing.add(lambda: self._records.close(failed=failed))
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *details: object) -> None:
        self.close(failed=error is not None)
