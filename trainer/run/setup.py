"""The parts of a learner, in a run or in a custom loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from vf.cluster.fleet import Fleet
from vf.inference.rendering.renderer import Renderer
from vf.inference.rendering.vision import images_of, sample_picture
from vf.traces.images import Image
from vf.traces.messages import Message
from vf.trainer.run.plan import Plan
from vf.trainer.run.run_folder import RunFolder
from vf.trainer.settings.config import Config

log = logging.getLogger(__name__)


class ProbePrompt(NamedTuple):
    """The prompt that an engine is probed with; its images have their places in it."""

    token_ids: list[int]
    images: tuple[Image, ...] = ()

    @classmethod
    def of(cls, renderer: Renderer, token_ids: list[int]) -> Self:
        """Return these tokens; for a model that sees, a prompt with a picture in their place."""
        if renderer.vision is None:
            return cls(token_ids)
        shown = Message.of("user", ["What is in this picture?", sample_picture()])
        token_ids = renderer.prompt([shown], [])
        return cls(token_ids, tuple(renderer.vision.placed(token_ids, images_of([shown]), 0)))


@dataclass(frozen=True, slots=True)
class Setup:
    """Model and engine, before they are loaded.

    Attributes:
        config: Checked settings.
        renderer: Chat template and parser.
        probe: The prompt that the engine is probed with.
        published: Folder for weights on their way to a server.
        log_path: Where a server's output goes.
        note: Called with what the user should be able to find again.
        say: Called, now and then, with what is being waited for.
        fleet: The fleet that has places for servers; without one they are children of this process.
    """

    config: Config
    renderer: Renderer
    probe: ProbePrompt
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
        probe = ProbePrompt.of(plan.renderer, plan.probe_ids)
        parts = plan.renderer, probe, published, folder.inference_log
        return cls(config, *parts, note, say, server_fleet)
