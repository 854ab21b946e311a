"""The parts of a learner, in a run or in a custom loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from vf.cluster.fleet import Fleet
from vf.inference.rendering.renderer import Renderer
from vf.trainer.run.plan import Plan
from vf.trainer.run.run_folder import RunFolder
from vf.trainer.settings.config import Config

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Setup:
    """Model and engine, before they are loaded.

    Attributes:
        config: Checked settings.
        renderer: Chat template and parser.
        probe_ids: The prompt that the engine is probed with.
        published: Folder for weights on their way to a server.
        log_path: Where a server's output goes.
        note: Called with what the user should be able to find again.
        say: Called, now and then, with what is being waited for.
        fleet: The fleet that has places for servers; without one they are children of this process.
    """

    config: Config
    renderer: Renderer
    probe_ids: list[int]
    published: Path
    log_path: Path
    note: Callable[[str], None] = log.warning
    say: Callable[[str], None] = log.info
    fleet: Fleet | None = None

    @classmethod
    def of(
        cls,
        plan: Plan,
        folder: RunFolder,
        note: Callable[[str], None],
        say: Callable[[str], None],
        fleet: Fleet,
    ) -> Self:
        """Return the setup of a run, whose fleet is asked for servers where it is a cluster."""
        config, published = plan.config, folder.path / "published"
        server_fleet = fleet if config.cluster.backend != "local" else None
        parts = plan.renderer, plan.probe_ids, published, folder.inference_log
        return cls(config, *parts, note, say, server_fleet)
