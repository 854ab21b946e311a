"""Rows as tasks, in splits, with the sandbox spec of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from vf.bridges.swe.rows import PatchIs, instances
from vf.environments.datasets.tasks import tasks_from
from vf.environments.environment import Split
from vf.runtime.errors import ConfigError
from vf.runtime.rows import Rows, Source, read_rows
from vf.sandbox.spec import Build, SandboxSpec
from vf.traces.task import Task


class SweRows:
    """Rows as tasks; see :func:`vf.bridges.swe.environment.swe` for the arguments."""

    def __init__(
        self,
        *,
        data: Source | Mapping[str, Source],
        image: str | None,
        build: Path | None,
        patch_is: PatchIs | None,
        held_out: float | None,
        allow: tuple[str, ...],
        prompt: str,
        workdir: str,
    ) -> None:
        self.data, self.image, self.build, self.patch_is = data, image, build, patch_is
        self.held_out, self.allow, self.prompt, self.workdir = held_out, allow, prompt, workdir

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield the tasks of a split.

        Raises:
            ConfigError: If there are none, or a row cannot be used.
        """
        sources: Any = self.data
        if isinstance(sources, Mapping):
            sources = {name: partial(self._rows, source) for name, source in sources.items()}
        elif self.held_out:
            sources = partial(self._rows, sources)
        else:
            sources = {"eval" if self.held_out is None else "train": partial(self._rows, sources)}
        tasks = tasks_from(
            sources,
            split,
            id="id",
            info=("repo", "base_commit", "image"),
            eval_share=self.held_out or 0.5,  # of a mapping, no share is taken
        )
        empty = True
        for task in tasks:
            empty = False
            yield task
        if empty:
            raise ConfigError(
                f"swe: no rows are for the {split} split; write held_out = 0.1 to keep a tenth for "
                "evaluation and train on the others, or data = { train = ..., eval = ... }"
            )

    def _rows(self, source: Source) -> Rows:
        parsed = instances(
            read_rows(source),
            image=self.image,
            built=self.build is not None,
            patch_is=self.patch_is,
        )
        for instance in parsed:
            row = instance.row()
            info = row.pop("info")
            prompt = self.prompt.replace("{repo}", instance.repo).replace("{workdir}", self.workdir)
            yield row | info | {"prompt": prompt.replace("{statement}", instance.statement)}

    def spec(self, task: Task) -> SandboxSpec:
        """Return the spec of a task's sandboxes.

        Raises:
            ConfigError: If there is no folder to build its image from.
        """
        build = None
        if self.build is not None:
            folder = self.build / task.id
            if folder.parent != self.build or not (folder / "Dockerfile").is_file():
                raise ConfigError(f"swe: there is no Dockerfile in {folder}")
            build = Build(folder)
        return SandboxSpec(
            image=None if build else str(task.info["image"]),
            build=build,
            writable=True,
            workdir=self.workdir,
            allow=self.allow,
        )
