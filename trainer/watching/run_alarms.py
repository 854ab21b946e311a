"""The alarms of a run: those of each environment by itself, and of sampler and learner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vf.trainer.run.group import Group
from vf.trainer.run.metrics import Metrics, by_environment
from vf.trainer.settings.config import TrainerArgs
from vf.trainer.watching.alarms import Alarms, observe_kl


class RunAlarms:
    """Watches the rewards of each environment; they are not comparable between environments.

    Args:
        args: By the environment's name, ``[trainer.args]`` as they are there.
    """

    def __init__(self, args: Mapping[str, TrainerArgs]) -> None:
        self._args = args
        self._of = {name: Alarms() for name in args}
        self._ringing: set[str] = set()  # those of the whole run

    def observe(
        self, groups: Sequence[Group], metrics: Metrics, args: TrainerArgs
    ) -> tuple[Metrics, list[str]]:
        """Add a step's rollouts.

        Args:
            groups: The step's.
            metrics: The same step's.
            args: ``[trainer.args]``.

        Returns:
            The alarms' metrics: of each environment, and of all the one that is farthest from 0.
            And a note for every alarm that begins.
        """
        found: dict[str, Metrics] = {}
        notes: list[str] = []
        for name, alarms in self._of.items():
            own = [group for group in groups if group.environment == name]
            if not own and len(self._of) > 1:
                continue  # the step has none of its tasks
            found[name], said = alarms.observe(own)
            notes += [f"{name}: {note}" if len(self._of) > 1 else note for note in said]
        worst = {
            key: max((each[key] for each in found.values()), key=abs)
            for key in next(iter(found.values()), {})
        }
        supported = any(
            branch.supports
            for group in groups
            for trace in group.traces
            for branch in trace.branches
        )
        others = [*self._args.values()]
        kl, said = observe_kl(self._ringing, metrics, args, others, supported=supported)
        return by_environment(found, len(self._of)) | worst | kl, notes + said

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON values."""
        return {
            "ringing": sorted(self._ringing),
            "environments": {name: alarms.state() for name, alarms in self._of.items()},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume; an environment that was not there begins without a past."""
        saved = dict(state.get("environments", {}))
        if "rollouts" in state:  # as it was written when a run had one environment
            saved = {next(iter(self._of)): state}
        self._ringing = {"kl"} & set(state.get("ringing", []))
        for name in self._of.keys() & saved.keys():
            self._of[name] = Alarms(**saved[name])
