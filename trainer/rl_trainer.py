"""The trainer: one object with one readable step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vf.trainer.collecting.collector import Collector
from vf.trainer.engines import build_engine, check_gap, probe
from vf.trainer.learning.batch import Sample, build_samples
from vf.trainer.learning.objective import UpdateStats
from vf.trainer.learning.policy import Policy
from vf.trainer.processes.launch import leave_world
from vf.trainer.run.display import Display, SilentDisplay
from vf.trainer.run.group import Group
from vf.trainer.run.metrics import Metrics
from vf.trainer.run.plan import Plan
from vf.trainer.run.run_folder import RunFolder
from vf.trainer.run.summary import Summary
from vf.trainer.saving.checkpoint import Progress
from vf.trainer.saving.checkpoint_keeper import Keeper
from vf.trainer.settings.overlap import streams
from vf.trainer.watching.alarms import Alarms, observe_kl
from vf.trainer.watching.metrics import step_metrics
from vf.trainer.watching.notes import baseline_notes, step_notes
from vf.trainer.watching.report import Report
from vf.trainer.watching.step_clock import StepClock
from vf.trainer.watching.trackers import Tracker, open_trackers

log = logging.getLogger(__name__)


class RLTrainer:
    """Trains a model in an environment.

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
        self._clock = StepClock(self._begin_part)
        self._earlier_seconds = 0.0
        self._started = time.perf_counter()
        self._streams = streams(plan.config)
        self._report = Report(folder, plan)
        self._tracker: Tracker | None = None
        self._unwritten: Metrics | None = None  # the last step's, until its evaluation is there
        self._again = False  # they were written without it, when it broke off
        self._standing: Progress | None = None  # after the last step, while the policy is of it
        self._closers: list[Callable[[], Any]] = []
        try:
            self._start()
        except BaseException:
            self.close(failed=True)
            raise

    def _start(self) -> None:
        from accelerate.utils import set_seed

        set_seed(self.args.seed)
        plan, folder = self.plan, self.folder
        self.policy = Policy(plan.config.model, self.args)
        self._closers.append(self.policy.ranks.stop)
        leave_world()
        self._keeper = Keeper(folder.checkpoints, self.policy, plan, self._note)
        self.engine = build_engine(plan, self.policy, folder)
        self._closers.append(self.engine.stop)
        self.engine.start(self.display.waiting)
        log.info("engine %s at %s", plan.config.inference.engine, self.engine.base_url)
        self.collector = Collector(
            plan,
            engine=self.engine,
            folder=folder,
            display=self.display,
            clock=self._clock,
            note=self._note,
        )
        self._closers.append(self.collector.stop)
        self.publish()
        self._clock.lap()  # the first step does not answer for the start

    def train(self) -> Summary:
        """Train to ``max_steps``, evaluating and saving on the way.

        If it ends before, by an error or by Ctrl-C, the last finished step is saved first.

        Raises:
            TrainingError: Too many rollouts failed, or the loss is not finite.
            EngineError: The engine died.
            CheckpointError: The last checkpoint could not be written.
        """
        names, config = self.args.report_to, self.plan.config
        self._tracker = open_trackers(names, self.folder, config, step=self.step_count)
        self.display.start(self.step_count, self.args.max_steps)
        self._open_ahead()
        try:
            if self._unwritten is not None:
                self._conclude(self._unwritten)
            elif self.step_count == 0 and self._evaluates:
                self._conclude({"step": 0})
            while self.step_count < self.args.max_steps:
                self._conclude(self.step())
            self.settle()
        except BaseException:
            if self._standing is not None:
                self._keeper.rescue(self._standing, self.seconds)
            raise
        if self._keeper.unsaved is not None:
            raise self._keeper.unsaved
        return self.summary()

    def step(self) -> Metrics:
        """Do one training step: roll out, score, learn, publish. Returns its metrics."""
        self.settle()
        self.collector.open(self.step_count + 1, version=self.step_count)
        self.step_count += 1
        groups, updates = self._collect_and_learn()
        with self._clock.part("publish"), self.policy.phase("publish", None):
            gap = self.publish()
        self._open_ahead()
        return self._measure(groups, updates, gap)

    def _open_ahead(self) -> None:
        """Start what rollouts may begin with the weights that are served now."""
        if self.step_count < self.args.max_steps:
            self.collector.open(self.step_count + 1, version=self.step_count)

    def _collect_and_learn(self) -> tuple[list[Group], list[UpdateStats]]:
        """Wait for the step's groups, and train; on the first as they come, if these stream."""
        groups: list[Group] = []
        streamed: dict[int, list[Sample]] = {}
        most = self.args.groups_per_step // self.args.num_substeps
        for group in self.collector.arriving(self.step_count):
            groups.append(group)
            if self._streams and len(streamed) < most and (new := self._build(group)):
                with self._clock.part("train"), self.engine.training():
                    self.policy.accumulate(new)
                streamed[group.number] = new
        groups.sort(key=lambda group: group.number)
        others = (self._build(group) for group in groups if group.number not in streamed)
        with self._clock.part("train"):
            teaching = [*streamed.values(), *(new for new in others if new)]
            return groups, self.learn(teaching, len(streamed))

    def learn(self, groups: list[list[Sample]], streamed: int = 0) -> list[UpdateStats]:
        """Take the step's optimizer steps: ``num_iterations`` times ``num_substeps``.

        Args:
            groups: Samples, by group.
            streamed: How many of the first have been accumulated: they are the first substep's.
        """
        count, updates = self.args.num_substeps, []
        if streamed and count > 1:
            rest = groups[streamed:]
            shares = [groups[:streamed], *(rest[i :: count - 1] for i in range(count - 1))]
        else:
            shares = [groups[i::count] for i in range(count)]
        with self.engine.training():
            for _ in range(self.args.num_iterations):
                for share in filter(None, shares):
                    if samples := [sample for group in share[streamed:] for sample in group]:
                        self.policy.accumulate(samples)
                    streamed = 0
                    self._standing = None
                    updates.append(self.policy.finish())
        return updates

    def _build(self, group: Group) -> list[Sample]:
        """Return the samples of a group; none if it has nothing to teach."""
        built = build_samples([group], self.args)
        return built[0] if built else []

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
        sampler, prompt_ids = self.collector.sampler, self.plan.probe_ids
        gap = self.collector.call(probe(sampler, self.policy, self.engine, prompt_ids, stops))
        check_gap(gap, self.plan.config.inference.logprob_tolerance, self.step_count)
        return gap

    def _measure(self, groups: list[Group], updates: list[UpdateStats], gap: float) -> Metrics:
        """Return the step's metrics, and say what is remarkable about them."""
        times = self._clock.lap()
        metrics: Metrics = {
            "step": self.step_count,
            **step_metrics(self.step_count, groups, updates, times, self.args),
            "learning_rate": self.policy.learning_rate,
            "logprob_gap": gap,
            "tasks/resting": self.collector.orchestrator.cursor.resting,
        }
        alarms, notes = self._alarms.observe(groups)
        kl_alarm, kl_notes = observe_kl(self._alarms.ringing, metrics, self.args)
        for note in [*notes, *kl_notes]:
            self._note(f"step {self.step_count}: {note}")
        for note in step_notes(self.step_count, groups, metrics):
            self._note(note)
        shown = groups[0].traces
        if shown and (self.step_count - 1) % self.args.sample_steps == 0:
            self.display.sample(shown[0])
        return metrics | alarms | kl_alarm

    def _conclude(self, metrics: Metrics) -> None:
        """Begin the evaluation that is due after a step, and write down what is known."""
        self._unwritten = metrics
        if self.step_count:
            self.display.step(metrics)
        self._standing = self._progress()
        if self._evaluation_is_due:
            self.collector.begin_evaluation(self.step_count)
        else:
            self.settle()

    def settle(self) -> None:
        """Wait for the evaluation under way, write the last step's metrics, and save if it is due.

        The next step's rollouts go on meanwhile; only its training waits, for it would change
        the weights that are evaluated.
        """
        if self._unwritten is None:
            return
        metrics, self._unwritten = self._unwritten, None
        again, self._again = self._again, False
        try:
            metrics |= self.collector.end_evaluation()
        finally:  # resume() makes up for one that breaks off
            self.folder.append_metrics(metrics, again=again)
        best = False
        if "eval/reward/mean" in metrics:
            self.display.evaluation(self.step_count, metrics)
            best = self.step_count > 0 and self._keeper.is_best(metrics["eval/reward/mean"])
        for note in baseline_notes(self.step_count, metrics, evaluates=self._evaluates):
            self._note(note)
        if self._tracker is not None:
            self._tracker.log(metrics)
        last = self.step_count == self.args.max_steps
        if self.step_count and (best or last or self.step_count % self.args.save_steps == 0):
            with self._clock.part("save"):
                self._keeper.try_save(self._progress(), best=best)
        self._report.update(final=last)

    def evaluate(self) -> Metrics:
        """Measure the model on the held-out tasks, and write the traces."""
        self.collector.begin_evaluation(self.step_count)
        return self.collector.end_evaluation()

    def save(self) -> Path:
        """Write a checkpoint of where the run stands.

        Raises:
            CheckpointError: It could not be written.
        """
        return self._keeper.save(self._progress())

    def resume(self, told: Collection[str] = (), *, allow_changes: bool = False) -> int:
        """Go back to the run's newest checkpoint, and return its step.

        A run that ended before its first checkpoint begins anew, with step 0. Traces of what is
        done over are kept apart (:meth:`RunFolder.rewind`).

        Args:
            told: Dotted names of settings that were changed on purpose.
            allow_changes: Go on even if the checkpoint is of other settings or another model.

        Raises:
            ConfigError: It does not fit; the differences are listed.
        """
        with self.engine.training():
            progress = self._keeper.load(told, allow_changes=allow_changes)
        if progress is None:
            self.folder.rewind(-1)
            return 0
        self.step_count = progress.step
        self._earlier_seconds = progress.seconds
        self._alarms = Alarms(**progress.alarms)
        self.publish()
        lines = [line for line in self.folder.read_metrics() if line["step"] == self.step_count]
        if self._evaluation_is_due and lines and "eval/reward/mean" not in lines[-1]:
            self._unwritten, self._again = lines[-1], True
        self.folder.rewind(self.step_count, evaluated=not self._again)
        self.collector.restore(progress.queue)
        self._clock.lap()  # nor does the next step for what it took to come back
        return self.step_count

    def _progress(self) -> Progress:
        return Progress(
            self.step_count,
            self.seconds,
            self._alarms.state(),
            self._keeper.best_reward,
            self._keeper.base,
            self.collector.queue(),
        )

    def summary(self) -> Summary:
        """Return how the run went, from its own metrics."""
        held_out = {
            int(line["step"]): line.get("eval/reward/mean") for line in self.folder.read_metrics()
        }
        return Summary(
            steps=self.step_count,
            eval_before=held_out.get(0),
            eval_after=held_out.get(self.step_count),
            seconds=self.seconds,
            checkpoint=self._keeper.latest or self.folder.checkpoints,
        )

    @property
    def seconds(self) -> float:
        """Wall time spent on the run so far."""
        return self._earlier_seconds + time.perf_counter() - self._started

    @property
    def _evaluates(self) -> bool:
        return self.args.eval_strategy == "steps"

    @property
    def _evaluation_is_due(self) -> bool:
        last = self.step_count == self.args.max_steps
        return self._evaluates and (last or self.step_count % self.args.eval_steps == 0)

    def _begin_part(self, name: str) -> None:
        self.collector.watchdog.phase(name)
        self.display.phase(name)

    def _note(self, text: str) -> None:
        log.warning("%s", text)
        self.display.note(text)

    def close(self, *, failed: bool = False) -> None:
        """Stop the engine and all that is in flight. Safe to call twice.

        A signal that comes meanwhile ends what is just being stopped, and nothing else: it is
        raised when all is done.

        Args:
            failed: Whether the run ends because something went wrong.
        """
        if failed:
            self._closers.append(lambda: self._report.update(final=True))
        if (tracker := self._tracker) is not None:
            self._closers.append(lambda: tracker.close(failed=failed))
            self._tracker = None
        self._closers.append(self.display.stop)  # it too may fail: its terminal may be gone
        signalled: BaseException | None = None
        while self._closers:
            closer = self._closers.pop()
            try:
                closer()
            except Exception:
                log.exception("while closing")
            except BaseException as error:
                signalled = error
        if signalled is not None:
            raise signalled

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close(failed=exc is not None)
