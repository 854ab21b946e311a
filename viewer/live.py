"""The page over HTTP for this machine only, with what changes as server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
import webbrowser
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vf.runtime.errors import ConfigError
from vf.runtime.temporary import temporary_folder
from vf.traces.image_files import find_image
from vf.traces.view.encoded import Encoder, state_of
from vf.traces.view.sources import find_sources
from vf.traces.view.write_page import write_page
from vf.viewer.page import live_page
from vf.viewer.watch import Event, Watch

if TYPE_CHECKING:
    from aiohttp import web

SECONDS = 0.5  # between two looks at the files, while a page is open
SHARE = 10.0  # times what a look took are waited before the next, where files are many
KEEP_ALIVE = 15.0  # seconds of silence after which a comment is sent: a lost page is noticed

_HOSTS = {"127.0.0.1", "localhost"}
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
# The content of a name never changes.
_OF_IMAGES = {
    "Cache-Control": "private, max-age=31536000, immutable",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_NONE = b"<!doctype html><meta charset=utf-8><title>Traces</title>"


class TracesPage:
    """One file with all traces, up to date when it is asked for.

    A file is read and encoded again only if it has changed.

    Args:
        folder: The folder of the file.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "traces.html"
        self._encoder = Encoder(folder, images=False)
        self._seen: Sequence[tuple[Path, object]] | None = None
        self._writing = asyncio.Lock()

    async def page(self, files: Sequence[Path], title: str) -> Path:
        """Return the page of these files, written again if one of them has changed."""
        async with self._writing:
            seen = [(file, state_of(file)) for file in files if file.exists()]
            if seen != self._seen:
                await asyncio.to_thread(self._write, [file for file, _ in seen], title)
                self._seen = seen
        return self._file

    def _write(self, files: Sequence[Path], title: str) -> None:
        from vf.inference.rendering.renderer import token_texts

        try:
            write_page(
                find_sources(files),
                self._file,
                title=title,
                texts_of=token_texts,
                encoder=self._encoder,
                served=True,
            )
        except ConfigError:  # a file was moved away between the look and the reading
            self._file.write_bytes(_NONE)


class LiveServer:
    """Serves a page that follows a :class:`~vf.viewer.watch.Watch`.

    Args:
        watch: The files that the page shows.
        scratch: A folder for the page of traces.

    Attributes:
        url: Where the page is, once it is served.
    """

    def __init__(self, watch: Watch, scratch: Path) -> None:
        self.watch = watch
        self.url = ""
        self._traces = TracesPage(scratch)
        self._pages: set[asyncio.Queue[Sequence[Event]]] = set()
        self._looking = asyncio.Lock()

    async def start(self, port: int = 0) -> web.AppRunner:
        """Listen on 127.0.0.1; returns what has to be cleaned up at the end.

        Raises:
            ConfigError: If the port is taken.
        """
        from aiohttp import web

        app = web.Application(middlewares=[_only_this_machine()])
        app.router.add_get("/", self._page)
        app.router.add_get("/events", self._events)
        app.router.add_get("/traces", self._traces_page)
        app.router.add_get("/images/{name}", self._image)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", port)
            await site.start()
        except (OSError, OverflowError) as error:
            await runner.cleanup()
            raise ConfigError(f"--port {port}: {error}") from error
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        return runner

    async def follow(self) -> None:
        """Tell all open pages what changes, until cancelled."""
        took = 0.0
        while True:
            await asyncio.sleep(max(SECONDS, SHARE * took))
            started = time.monotonic()
            if self._pages:
                async with self._looking:
                    await self._look()
            took = time.monotonic() - started

    async def _look(self) -> None:
        try:
            events = await asyncio.to_thread(self.watch.scan)
        except OSError:  # a folder was moved away while it was looked at: the next look is whole
            return
        for page in self._pages if events else ():
            page.put_nowait(events)

    async def _page(self, request: web.Request) -> web.Response:
        from aiohttp import web

        headers = {**_HEADERS, "X-Frame-Options": "DENY"}
        body = live_page(self.watch.title)
        return web.Response(body=body, content_type="text/html", charset="utf-8", headers=headers)

    async def _traces_page(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        page = await self._traces.page(self.watch.sources.traces, self.watch.title)
        headers = {**_HEADERS, "X-Frame-Options": "SAMEORIGIN"}
        return web.FileResponse(
            page, headers={**headers, "Content-Type": "text/html; charset=utf-8"}
        )

    async def _image(self, request: web.Request) -> web.StreamResponse:
        """Give out an image of a trace that is shown, whose name is the hash of its content."""
        from aiohttp import web

        name = request.match_info["name"]
        image_file = await asyncio.to_thread(find_image, name, self.watch.sources.traces)
        if image_file is None:
            raise web.HTTPNotFound
        path, kind = image_file
        return web.FileResponse(path, headers={**_HEADERS, **_OF_IMAGES, "Content-Type": kind})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        answer = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
        await answer.prepare(request)
        news: asyncio.Queue[Sequence[Event]] = asyncio.Queue()
        async with self._looking:
            await self._look()  # the others first: a look returns each change once
            await answer.write(
                _encode([("begin", None), *self.watch.everything(), ("whole", None)])
            )
            self._pages.add(news)
        try:
            while True:
                try:
                    events = await asyncio.wait_for(news.get(), KEEP_ALIVE)
                    await answer.write(_encode(events))
                except TimeoutError:
                    await answer.write(b": still here\n\n")
        except ConnectionError:  # the page was closed
            return answer
        finally:
            self._pages.discard(news)


def _encode(events: Sequence[Event]) -> bytes:
    lines = [
        f"event: {name}\ndata: {json.dumps(data, allow_nan=False)}\n\n" for name, data in events
    ]
    return "".join(lines).encode()


def _only_this_machine() -> Callable[..., Awaitable[web.StreamResponse]]:
    """Refuse another site whose name was made to lead here."""
    from aiohttp import web

    @web.middleware
    async def check(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.host.rpartition(":")[0] not in _HOSTS and request.host not in _HOSTS:
            raise web.HTTPForbidden
        return await handler(request)

    return check


async def _serve(watch: Watch, port: int, report: Callable[[str], None]) -> None:
    with temporary_folder("view") as scratch:
        server = LiveServer(watch, scratch)
        runner = await server.start(port)
        try:
            report(server.url)
            await server.follow()
        finally:
            await runner.cleanup()


def serve(watch: Watch, port: int = 0, *, opened: bool = False) -> None:
    """Serve the page until interrupted, and say where.

    Args:
        watch: The files that the page shows.
        port: The port; 0 takes any that is free.
        opened: Open it in a browser.

    Raises:
        ConfigError: If the port is taken.
    """

    def report(url: str) -> None:
        print(f"{url} (Ctrl-C ends it)", flush=True)
        if opened:
            webbrowser.open(url)

    try:
        asyncio.run(_serve(watch, port, report))
    except KeyboardInterrupt:
        print()
