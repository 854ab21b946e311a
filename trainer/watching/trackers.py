"""Other places that a run's metrics go to: TensorBoard, Weights & Biases, trackio.

``metrics.jsonl`` is the record; these are copies, each through its own library, and off unless
``trainer.args.report_to`` names them. TensorBoard and trackio write to this machine's disk. W&B
sends metrics, settings and facts about the machine (its name, the command line, the installed
packages) to its server, unless ``WANDB_MODE`` says otherwise; the code, the state of the git
repository and what the terminal shows are not sent.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

from pydantic import BaseModel

from vf.runtime.errors import ConfigError
from vf.runtime.parse import parse_json
from vf.trainer.run.metrics import Metrics
from vf.trainer.run.run_folder import RunFolder, write_whole
from vf.trainer.settings.config import Config
from vf.trainer.settings.write_config import to_toml, without_secrets

log = logging.getLogger(__name__)

TrackerName = Literal["tensorboard", "wandb", "trackio"]

PROJECT = "vf-rl"  # at W&B and trackio; WANDB_PROJECT names another at W&B
FINISH_SECONDS = 60.0  # that W&B may keep uploading when a run has ended; the rest stays on disk

_ADVICE = {
    "wandb": "Log in with `wandb login`, or keep it on this machine with WANDB_MODE=offline",
    "tensorboard": "Check that the run's folder is writable",
    "trackio": "Check that TRACKIO_DIR, or trackio's folder in the Hugging Face cache, is writable",
}


class Tracker(Protocol):
    """Where metrics go."""

    def log(self, metrics: Metrics) -> None:
        """Take a line as it is in ``metrics.jsonl``; ``step`` is one of its keys."""
        ...

    def close(self, *, failed: bool = False) -> None:
        """Write or send what is left."""
        ...


def check_trackers(names: Sequence[str]) -> None:
    """Check that the libraries are installed, without importing them.

    Raises:
        ConfigError: If a library is missing; says how to install it.
    """
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a mere folder wandb/ is not the library
            raise ConfigError(
                f"trainer.args.report_to has {name!r}, but {name} is not installed: "
                "pip install 'vf-rl[track]', or remove it"
            )


def open_trackers(
    names: Sequence[str], folder: RunFolder, config: BaseModel, *, step: int
) -> Tracker:
    """Open trackers as one.

    A resumed run continues the same run of W&B and trackio: their ids are kept in the run's
    folder, in ``trackers.json``. Steps that they received before the run was killed are not sent
    again.

    Open them before a live display starts and close them after it has stopped: W&B and trackio
    print where they write. Later failures, in :meth:`Tracker.log` or :meth:`Tracker.close`, are
    never raised; the first of each tracker is logged.

    Args:
        names: The trackers, of :data:`TrackerName`; may be empty.
        folder: The run's folder; it must exist.
        config: The settings, which are shown beside the metrics, without secrets.
        step: The step to continue after; 0 for a new run.

    Raises:
        ConfigError: If a library is not installed, or its tracker does not start.
    """
    check_trackers(names)
    shown = without_secrets(config) if isinstance(config, Config) else config
    opened: dict[str, Tracker] = {}
    for name in dict.fromkeys(names):
        try:
            opened[name] = _OPENERS[name](folder, shown, step)
        except Exception as error:
            for tracker in opened.values():
                tracker.close(failed=True)
            raise ConfigError(
                f"trainer.args.report_to: {name} does not start: "
                f"{str(error).rstrip('. ')}. {_ADVICE[name]}; or remove it from report_to"
            ) from error
    return _Guarded(opened)


class _Guarded:
    """Several trackers, none of which can stop a run."""

    def __init__(self, trackers: dict[str, Tracker]) -> None:
        self._trackers = trackers
        self._failed: set[str] = set()

    def log(self, metrics: Metrics) -> None:
        for name, tracker in self._trackers.items():
            self._try(name, partial(tracker.log, metrics))

    def close(self, *, failed: bool = False) -> None:
        while self._trackers:  # so that a second call does nothing
            name, tracker = self._trackers.popitem()
            self._try(name, partial(tracker.close, failed=failed))

    def _try(self, name: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            if name not in self._failed:
                self._failed.add(name)
                log.warning(
                    "%s failed (%s: %s). The run continues, and metrics.jsonl has every step; "
                    "its further failures are not logged",
                    name,
                    type(error).__name__,
                    error,
                )


class _TensorBoard:
    """Event files in the run's folder, under ``tensorboard/``."""

    def __init__(self, folder: RunFolder, config: BaseModel, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        where = folder.path / "tensorboard"
        # TensorBoard hides what earlier event files have of the purged step and later ones.
        purged = step + 1 if step else 0
        self._writer = SummaryWriter(str(where), purge_step=purged if where.exists() else None)
        if not step:
            self._writer.add_text("config", f"```toml\n{to_toml(config)}```", 0)

    def log(self, metrics: Metrics) -> None:
        step = int(metrics["step"])
        for name, value in metrics.items():
            if name != "step":
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, *, failed: bool = False) -> None:
        self._writer.close()


def _wandb(folder: RunFolder, config: BaseModel, step: int) -> Tracker:
    import wandb

    link = _Link.read(folder, "wandb")
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=folder.path.name,
        id=link.id,
        resume="allow",
        dir=str(folder.path),
        config=config.model_dump(mode="json"),
        settings=wandb.Settings(
            console="off",
            quiet=True,
            save_code=False,
            disable_code=True,
            disable_git=True,
            finish_timeout=FINISH_SECONDS,
        ),
    )
    return _Linked(link, run.log, lambda failed: run.finish(exit_code=int(failed)))


def _trackio(folder: RunFolder, config: BaseModel, step: int) -> Tracker:
    import trackio

    link = _Link.read(folder, "trackio")
    run = trackio.init(
        project=PROJECT,
        # trackio finds a run again by its name, and two folders may have the same one.
        name=f"{folder.path.name}-{link.id[:6]}",
        resume="allow",
        config=config.model_dump(mode="json"),
        embed=False,
    )
    return _Linked(link, run.log, lambda failed: run.finish())


@dataclass(slots=True)
class _Link:
    """Which run of a tracker is this one, as ``trackers.json`` has it.

    Attributes:
        folder: The run's.
        name: The tracker.
        id: The tracker's run.
        logged: The last step that it was given.
    """

    folder: RunFolder
    name: str
    id: str
    logged: int

    @classmethod
    def read(cls, folder: RunFolder, name: str) -> _Link:
        """Read what is known, or make a new id and write it down."""
        run = cls._all(folder).get(name, {"id": uuid.uuid4().hex[:16], "logged": -1})
        link = cls(folder, name, run["id"], run["logged"])
        link.write()
        return link

    def write(self) -> None:
        """Write it down, whole or not at all."""
        links = {**self._all(self.folder), self.name: {"id": self.id, "logged": self.logged}}
        write_whole(self.folder.path / "trackers.json", json.dumps(links, indent=1) + "\n")

    @staticmethod
    def _all(folder: RunFolder) -> dict[str, Any]:
        file = folder.path / "trackers.json"
        runs: dict[str, Any] = parse_json(file.read_text()) if file.exists() else {}
        return runs


class _Linked:
    """A tracker that keeps what it received: each step is sent only once."""

    def __init__(
        self, link: _Link, send: Callable[..., None], finish: Callable[[bool], None]
    ) -> None:
        self._link, self._send, self._finish = link, send, finish

    def log(self, metrics: Metrics) -> None:
        step = int(metrics["step"])
        if step > self._link.logged:
            self._send({k: v for k, v in metrics.items() if k != "step"}, step=step)
            self._link.logged = step
            self._link.write()

    def close(self, *, failed: bool = False) -> None:
        self._finish(failed)


_OPENERS: dict[str, Callable[[RunFolder, BaseModel, int], Tracker]] = {
    "tensorboard": _TensorBoard,
    "wandb": _wandb,
    "trackio": _trackio,
}
