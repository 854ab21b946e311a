"""Keeps a run's checkpoints: the newest, the best, and the last good one on a full disk.

One at a time is written, while the run continues.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path

from vf.runtime.errors import CheckpointError
from vf.trainer.run.plan import Plan
from vf.trainer.saving.checkpoint import (
    Progress,
    begin_checkpoint,
    load_checkpoint,
    read_progress,
    save_checkpoint,
)
from vf.trainer.saving.checkpoint_files import (
    latest_checkpoint,
    mark_best,
    named_checkpoint,
    remove_old,
    restore_best,
    set_aside_later,
    step_of,
)
from vf.trainer.saving.save_timer import SaveTimer
from vf.trainer.saving.settings_changes import check_fits
from vf.trainer.tinker_backend.policy import AnyPolicy, TinkerPolicy


class Keeper:
    """Writes and reads the checkpoints of one run.

    Args:
        folder: The run's folder of checkpoints.
        policy: The policy to save.
        plan: The run.
        note: Called with what the user should know.

    Attributes:
        best_reward: Highest held-out mean reward of any checkpoint so far.
        unsaved: Why the last checkpoint could not be written; None if it was.
    """

    def __init__(
        self, folder: Path, *, policy: AnyPolicy, plan: Plan, note: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._policy = policy
        self._plan = plan
        self._note = note
        self.base = policy.weights.fingerprint
        self.best_reward: float | None = None
        self._best_before: float | None = None
        self.unsaved: CheckpointError | None = None
        self._saving: Future[Path] | None = None
        self._saving_best = False
        self._timer = SaveTimer(plan.config.args.save_minutes)
        self._unlinked = ""  # why the last checkpoint was not linked, or others not removed

    @property
    def latest(self) -> Path | None:
        """The newest checkpoint."""
        return latest_checkpoint(self._folder)

    @property
    def due(self) -> bool:
        """Whether a checkpoint is due by the clock: rank 0's, which tells the other processes."""
        return self._timer.due

    def is_best(self, reward: float) -> bool:
        """Return whether a held-out reward is the highest so far, and remember it if it is.

        Of a checkpoint that could not be written it is not: so one that is being written is waited
        for.
        """
        self.wait()
        if self.best_reward is not None and reward <= self.best_reward:
            return False
        self._best_before, self.best_reward = self.best_reward, reward
        return True

    def save(self, progress: Progress) -> Path:
        """Write a checkpoint, and wait until it is on the disk.

        Raises:
            CheckpointError: If it could not be written.
        """
        self.wait()
        tokenizer, config = self._plan.renderer.tokenizer, self._plan.config
        return save_checkpoint(self._folder, self._policy, tokenizer, progress, config)

    def begin(
        self, progress: Progress, *, best: bool = False, rolling: bool = False, alone: bool = False
    ) -> None:
        """Begin to write a checkpoint, once the one before it is written; training may continue.

        If it cannot be written, that is noted, and the last good one stays: see :meth:`wait`.

        Args:
            progress: The state of the run.
            best: Whether it is the best by held-out reward.
            rolling: Whether it is due by the clock alone, and the next one replaces it.
            alone: Write it without the other trainer processes, which may be gone.
        """
        self.wait()
        tokenizer, config = self._plan.renderer.tokenizer, self._plan.config
        self._saving_best = best
        self._timer.begin()
        try:
            self._saving = begin_checkpoint(
                self._folder,
                self._policy,
                tokenizer,
                replace(progress, rolling=rolling),
                config,
                alone=alone,
                then=lambda checkpoint: self._tidy(checkpoint, best=best),
            )
        except CheckpointError as error:
            self._timer.end()
            self._failed(error)
        else:
            self._saving.add_done_callback(lambda _: self._timer.end())

    def wait(self) -> None:
        """Wait for the checkpoint that is being written, if any, and note what went wrong."""
        if self._saving is None:
            return
        wait([self._saving])  # interrupted here, it is still being written
        self._timer.end()
        ended, self._saving = self._saving, None
        try:
            ended.result()
        except CheckpointError as error:
            self._failed(error)
            return
        self.unsaved = None
        if self._unlinked:
            self._note(self._unlinked)
            self._unlinked = ""

    def report(self) -> None:
        """Note what went wrong with a checkpoint, if its writing has ended; wait for nothing."""
        if self._saving is not None and self._saving.done():
            self.wait()

    def _failed(self, error: CheckpointError) -> None:
        self.unsaved = error
        if self._saving_best:
            self.best_reward = self._best_before  # whose checkpoint exists
        self._note(f"{error}. The run continues; its last good checkpoint: {self.latest}")

    def _tidy(self, checkpoint: Path, *, best: bool) -> None:
        """Link a checkpoint that was written, and remove older ones; in the writing thread."""
        try:
            if best:
                mark_best(checkpoint)
            policy = self._policy
            forget = policy.forget if isinstance(policy, TinkerPolicy) else None
            remove_old(self._folder, self._plan.config.args.save_total_limit, forget)
        except OSError as error:  # not every file system has links
            self._unlinked = (
                f"{checkpoint} is written, but not linked as best, or older ones are not removed: "
                f"{error}. The run continues"
            )

    def rescue(self, progress: Progress, seconds: float) -> None:
        """Write a checkpoint of a run that ends early, if that is still possible.

        Args:
            progress: The run's state when the policy became what it is.
            seconds: Wall time spent by now.
        """
        self.wait()
        if self.latest is not None and progress.step <= step_of(self.latest):
            self._tell_saved(progress.step)
            return
        if self._policy.sharding.together:  # it needs all processes, and one may be gone
            return
        if self.unsaved is not None:  # it may have been the best
            progress = replace(progress, best_reward=self.best_reward)
        self.begin(replace(progress, seconds=seconds), alone=True)
        self.wait()
        if self.unsaved is None:
            self._tell_saved(progress.step)

    def _tell_saved(self, step: int) -> None:
        self._note(f"step {step} is saved; resume with vf-rl --resume {self._folder.parent}")

    def load(
        self, changed: Collection[str], *, allow_changes: bool, name: str | None = None
    ) -> Progress | None:
        """Load the newest checkpoint into the policy, and return where the run stood.

        Args:
            changed: Dotted names of settings that were changed on purpose.
            allow_changes: Resume even if the checkpoint is of other settings or another model.
            name: Another checkpoint to load, such as ``step-20``. Those of later steps get other
                names.

        Returns:
            None if there is no checkpoint: then nothing was changed.

        Raises:
            ConfigError: If it does not fit; the differences are listed.
        """
        self.wait()
        checkpoint = self.latest if name is None else named_checkpoint(self._folder, name)
        if checkpoint is None:
            return None
        progress = read_progress(checkpoint)
        for note in check_fits(
            checkpoint,
            base_then=progress.base,
            base_now=self.base,
            config=self._plan.config,
            changed=changed,
            allow_changes=allow_changes,
        ):
            self._note(note)
        load_checkpoint(checkpoint, self._policy)
        set_aside_later(self._folder, step_of(checkpoint))
        self.best_reward = progress.best_reward
        restore_best(self._folder, progress.best_reward)
        return progress
