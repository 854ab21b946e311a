"""One engine's containers: a pool for each spec, and limits on all of them together."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

from vf.runtime.errors import ConfigError
from vf.sandbox.bounds import Bounds
from vf.sandbox.container.address import Address
from vf.sandbox.container.docker_engine import Engine, ImageMissing, ImageUnfit
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.doctor import prepare
from vf.sandbox.container.hardening import Profile, profile_for
from vf.sandbox.container.opening import open_engine
from vf.sandbox.container.snapshot import EndedSandbox, SnapshotDamaged
from vf.sandbox.contract import Sandbox
from vf.sandbox.hosting.opened import open_one
from vf.sandbox.hosting.spec_images import images_of
from vf.sandbox.images.builds import ImageFailed, Images
from vf.sandbox.pool import Opened, Progress, SandboxPool
from vf.sandbox.spec import SandboxSpec, whole
from vf.sandbox.stats import HostStats, PoolStats

RECENT = 4  # recent requests per container kept ready, which show the frequent specs
PATIENCE = 300.0  # seconds that an episode waits while no container is handed out


class Host:
    """Makes containers on one engine, and keeps some of frequent specs ready.

    Each spec's share of the containers kept ready is its share of the recent requests, so that
    specs no longer requested lose theirs. Containers that episodes wait for are made first, and
    at the limit on all containers a ready one is destroyed for them.

    Args:
        engine: The engine that runs the containers.
        base: The prepared default settings, which a spec may override.
        own: The spec of the settings.
        bounds: The limits on all containers and images together.
        images: The builds and pulls of images.

    Attributes:
        most: The number of containers that it may have at once.
    """

    def __init__(
        self, engine: Engine, base: Profile, own: SandboxSpec, bounds: Bounds, images: Images
    ) -> None:
        self.engine = engine
        self.images = images
        self._base, self._own, self._bounds = base, own, bounds
        self.most = bounds.max_containers or sys.maxsize
        self._pools: OrderedDict[SandboxSpec, SandboxPool[Opened[DockerSandbox]]] = OrderedDict()
        self._profiles: dict[SandboxSpec, Profile] = {}
        self._recent: deque[SandboxSpec] = deque()
        self._counts: Counter[SandboxSpec] = Counter()
        self._expected: Counter[SandboxSpec] = Counter()  # requests that prefetch counted
        self._closed = PoolStats()  # counts of closed pools
        self._progress = Progress(self._held_up)
        self._lifetime = base.limits.lifetime  # the longest of all, seconds

    @property
    def load(self) -> int:
        """The number of episodes that have one of its containers, or wait for one."""
        pools = [pool.stats() for pool in self._pools.values()]
        return sum(pool.in_use + pool.waiting for pool in pools)

    def stats(self) -> HostStats:
        """Return the current counts."""
        specs = {spec: pool.stats() for spec, pool in self._pools.copy().items()}
        return HostStats(PoolStats.sum([self._closed, *specs.values()]), specs, self.images.stats())

    def start(self) -> None:
        """Begin to fill the pool of the settings' own spec."""
        self._request(self._own, self._bounds.pool * RECENT)
        if self._own not in self._pools and _is_plain(self._own):
            self._add(self._own, self._base)
        self._fill()

    @contextlib.asynccontextmanager
    async def open(self, spec: SandboxSpec | None = None) -> AsyncIterator[Sandbox]:
        """Take an unused container; it is destroyed on the way out.

        A snapshot that does not start, because code has damaged it, gives a sandbox that has
        ended.

        Raises:
            ConfigError: If none can be made; says how to fix it.
            SandboxError: If none could be made, or none in time.
        """
        effective_spec = whole(spec, self._own)
        async with AsyncExitStack() as stack:
            try:
                sandbox = await self._enter(stack, effective_spec)
            except SnapshotDamaged as damage:
                sandbox = await stack.enter_async_context(EndedSandbox(damage))
            yield sandbox

    async def prefetch(self, spec: SandboxSpec | None, count: int = 1) -> None:
        """Build or pull the image of a spec, and count its requests in advance.

        Args:
            spec: The spec that will be requested.
            count: The number of requests.

        Raises:
            ConfigError: If containers cannot be made from it; says how to fix it.
            SandboxError: If it cannot be built or pulled.
        """
        effective_spec = whole(spec, self._own)
        profile = await self._profile(effective_spec)
        self._request(effective_spec, count)
        self._expected[effective_spec] += count
        if effective_spec not in self._pools and self._share(effective_spec):
            self._add(effective_spec, profile)
        self._fill()

    async def filled(self, spec: SandboxSpec | None = None, *, timeout: float = PATIENCE) -> None:
        """Wait until what a spec's pool keeps ready is ready.

        Raises:
            ConfigError: If none can be made; says how to fix it.
            SandboxError: If they are not ready after ``timeout`` seconds, or cannot be made.
        """
        pool = self._pools.get(whole(spec, self._own))
        if pool is not None:
            await pool.filled(timeout=timeout)

    def give_up(self, reason: str) -> None:
        """Let all calls of its sandboxes fail, with this reason."""
        for pool in self._pools.values():
            for opened in pool.in_use:
                opened.sandbox.give_up(reason)

    async def close(self) -> None:
        """Destroy every container, and cancel what is being built."""
        await self.images.close()
        pools = list(self._pools.values())
        await asyncio.gather(*(pool.close() for pool in pools))

    async def _enter(self, stack: AsyncExitStack, spec: SandboxSpec) -> Sandbox:
        try:
            return await self._acquire(stack, spec)
        except ImageUnfit as error:
            if _is_plain(spec):
                raise
            raise _unfit(error) from error
        except ImageMissing:
            if _is_plain(spec):
                raise
        # It was there, and was removed since: another process needed the disk, say.
        for image in images_of(spec):
            self.images.forget(image)
        self._profiles.pop(spec, None)
        if (pool := self._pools.pop(spec, None)) is not None:
            self._closed = PoolStats.sum([self._closed, pool.stats()])
            await pool.close()
        try:
            return await self._acquire(stack, spec)
        except (ImageMissing, ImageUnfit) as error:
            raise _unfit(error) from error

    async def _acquire(self, stack: AsyncExitStack, spec: SandboxSpec) -> Sandbox:
        pool = self._pools.get(spec)
        if pool is None:
            profile = await self._profile(spec)
            pool = self._pools.get(spec) or self._add(spec, profile)
        self._pools.move_to_end(spec)
        if self._expected[spec] > 0:
            self._expected[spec] -= 1
        else:
            self._request(spec)
        opened = await stack.enter_async_context(pool.acquire(timeout=PATIENCE))
        return opened.sandbox

    async def _profile(self, spec: SandboxSpec) -> Profile:
        """Return the settings of a spec's containers, once its image is there."""
        if _is_plain(spec):
            return self._base
        if spec in self._profiles:
            return self._profiles[spec]
        names = await self._fetched(spec)
        if spec.compose is None:
            image_spec = replace(spec, image=names[0] if names else None, build=None)
            profile = profile_for(image_spec, self._base)
            try:
                profile = await asyncio.to_thread(prepare, self.engine, profile)
            except (ImageMissing, ImageUnfit) as error:
                raise _unfit(error) from error
        else:  # prepared when the file's main service is known, with its network
            profile = profile_for(replace(spec, compose=None), self._base)
        self._profiles[spec] = profile
        return profile

    async def _fetched(self, spec: SandboxSpec) -> list[str]:
        """Return the names of all images that a spec needs, once they are there."""
        fetching = [asyncio.ensure_future(self.images.image(image)) for image in images_of(spec)]
        try:
            return await asyncio.gather(*fetching)
        finally:
            for future in fetching:
                future.cancel()

    def _add(self, spec: SandboxSpec, profile: Profile) -> SandboxPool[Opened[DockerSandbox]]:
        self._lifetime = max(self._lifetime, profile.limits.lifetime)

        async def make() -> Opened[DockerSandbox]:
            return await open_one(self.engine, spec, profile, self.images)

        pool = self._pools[spec] = SandboxPool(
            make,
            self._share(spec),
            concurrency=self._bounds.concurrency,
            max_age=profile.limits.lifetime / 2,  # the other half is the episode's
            room=self._room,
            changed=self._fill,
            progress=self._progress,
        )
        pool.open()  # it is filled by who waits, or by `_fill`
        return pool

    def _request(self, spec: SandboxSpec, times: int = 1) -> None:
        """Count requests of a spec, and resize each pool to its share."""
        self._recent.extend([spec] * times)
        self._counts[spec] += times
        changed = {spec}
        while len(self._recent) > self._bounds.pool * RECENT:
            oldest = self._recent.popleft()
            self._counts[oldest] -= 1
            changed.add(oldest)
        self._counts = +self._counts  # without specs that were not requested lately
        for changed_spec in changed:
            if (pool := self._pools.get(changed_spec)) is not None:
                pool.resize(self._share(changed_spec))

    def _share(self, spec: SandboxSpec) -> int:
        return self._counts[spec] // RECENT

    def _room(self) -> int:
        """Return how many more containers may be made now."""
        if self.engine.lost:
            return 0
        pools = [pool.stats() for pool in self._pools.values()]
        at_once = self._bounds.concurrency - sum(pool.starting for pool in pools)
        return max(0, min(at_once, self.most - sum(pool.held for pool in pools)))

    def _held_up(self) -> float:
        """Return the seconds for which there may be no room: until containers in use end."""
        held = sum(pool.stats().held for pool in self._pools.values())
        return self._lifetime if held >= self.most else 0.0

    def _fill(self) -> None:
        """Make missing containers: first those that episodes wait for, in the order of requests."""
        for spec, pool in sorted(self._pools.items(), key=lambda item: item[1].first_arrival):
            pool.fill(spare=False)
            if pool.idle and not self._share(spec):
                self._closed = PoolStats.sum([self._closed, self._pools.pop(spec).stats()])
        self._give_way()
        for pool in reversed(self._pools.values()):
            pool.fill()

    def _give_way(self) -> None:
        """Destroy ready containers that nobody waits for, if an episode waits at the limit."""
        pools = {pool: pool.stats() for pool in self._pools.values()}
        waiting = sum(max(0, s.waiting - s.ready - s.starting) for s in pools.values())
        missing = min(waiting, waiting + sum(s.held for s in pools.values()) - self.most)
        missing -= sum(s.closing for s in pools.values())
        for pool, stats in pools.items():
            for _ in range(min(missing, stats.ready - stats.waiting)):
                pool.drop_one()
                missing -= 1


@contextlib.asynccontextmanager
async def open_host(
    base: Profile, own: SandboxSpec, bounds: Bounds, address: Address | None = None
) -> AsyncIterator[Host]:
    """Connect to an engine, check it, and remove everything made there at the end.

    Args:
        base: The default settings, which a spec may override.
        own: The spec of the settings.
        bounds: The limits on all containers and images there.
        address: The engine's address; None: that of ``DOCKER_HOST``, or this machine's.

    Raises:
        ConfigError: If containers cannot be made there; says how to fix it.
        SandboxError: If the engine stopped responding.
    """
    async with open_engine(base, address) as (engine, prepared):
        images = Images(
            engine, at_once=bounds.build_concurrency, pull=bounds.pull, disk=bounds.image_disk
        )
        host = Host(engine, prepared, own, bounds, images)
        try:
            yield host
        finally:
            try:
                await host.close()
            except asyncio.CancelledError:  # as a loop that ends does, once, to everything in it
                await host.close()
                raise


def _unfit(error: ConfigError) -> ImageFailed:
    """Return it as a failure of the task with that image, not of all tasks."""
    return ImageFailed(f"no container can be made from a task's image: {error}")


def _is_plain(spec: SandboxSpec) -> bool:
    """Return whether a spec leaves everything to the settings' profile."""
    return spec == SandboxSpec()
