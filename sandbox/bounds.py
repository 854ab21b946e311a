"""Limits on all sandboxes of one engine or machine together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from vf.runtime.errors import ConfigError
from vf.runtime.share import Share

Pull = Literal["missing", "never"]
PULLS: tuple[Pull, ...] = get_args(Pull)
DISK = 50 * 2**30  # bytes


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits on all containers and images of one engine together.

    Attributes:
        pool: Containers kept ready, for all specs together.
        concurrency: Containers made at a time.
        max_containers: Maximum number of containers, ready and in use; None for no limit except
            that on open files.
        build_concurrency: Images built or pulled at a time.
        pull: Whether missing images are pulled from a registry: "missing" or "never".
        image_disk: Total bytes that built and pulled images may use.
    """

    pool: int = 4
    concurrency: int = 4
    max_containers: int | None = None
    build_concurrency: int = 2
    pull: Pull = "missing"
    image_disk: float = DISK

    def divided(self, share: Share, files: int) -> Bounds:
        """Return the limits of one of the processes that share them.

        Each makes at least one container and one image at a time. ``image_disk`` is not divided:
        the processes of one machine count their images together.

        Args:
            share: The part of the limits for this process.
            files: The number of containers that its open files allow.

        Raises:
            ConfigError: If there are fewer containers than processes.
        """
        most = self.max_containers
        if most is not None and most < share.count:
            raise ConfigError(
                f"sandbox.max_containers = {most} is less than the {share.count} worker processes "
                "that share them: raise it, or run fewer workers"
            )
        return replace(
            self,
            pool=share.of(self.pool),
            concurrency=max(1, share.of(self.concurrency)),
            max_containers=files if most is None else min(share.of(most), files),
            build_concurrency=max(1, share.of(self.build_concurrency)),
        )
