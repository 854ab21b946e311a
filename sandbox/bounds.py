"""What all sandboxes of one engine or machine keep to."""

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
    """What all containers and images of one engine keep to.

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
        """Return the bounds of one of the processes that share them.

        At least one container and one image is made at a time in each. ``image_disk`` is not
        divided: processes of one machine keep one account of their images.

        Args:
            share: Which of them.
            files: Containers that its open files allow.

        Raises:
            ConfigError: There are fewer containers than processes.
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
