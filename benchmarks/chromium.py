"""A headless Chromium that tests and benchmarks drive over its own DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@cache
def find_chromium() -> str | None:
    """Return the program, or None if there is none that starts."""
    for name in NAMES:
        found = shutil.which(name)
        # Some systems have a program by this name that only says how to install it.
        if found and not subprocess.run([found, "--version"], capture_output=True).returncode:
            return found
    return None


class Navigated(RuntimeError):
    """The page that was asked has given way to another."""


class Tab:
    """One page of the browser.

    Attributes:
        errors: What scripts of the page threw, and what its policy refused.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for packet in self._socket:
            message = json.loads(packet.data)
            if "id" in message:
                answer = self._answers.pop(message["id"])
                if not answer.done():
                    answer.set_result(message)
            elif message["method"] == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(message["params"]["exceptionDetails"])[:2000])
            elif message["method"] == "Log.entryAdded":
                self.errors.append(message["params"]["entry"]["text"])
            elif message["method"] == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command; returns its result."""
        self._number += 1
        number, answer = self._number, asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        await self._socket.send_json({"id": number, "method": method, "params": params})
        message = await asyncio.wait_for(answer, 60)
        if "navigated" in (error := message.get("error", {})).get("message", ""):
            raise Navigated(f"{method}: {error}")
        if error:
            raise RuntimeError(f"{method}: {error}")
        return message["result"]  # type: ignore[no-any-return]

    async def evaluate(self, script: str) -> Any:  # noqa: ANN401
        """Return the value of a JavaScript expression; a promise is awaited."""
        result = await self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"])[:2000])
        return result["result"].get("value")

    async def until(self, script: str, seconds: float = 30.0) -> None:
        """Wait until an expression is true."""
        ends = time.monotonic() + seconds
        while True:
            late = time.monotonic() > ends  # read first: the last check is made after the deadline
            with suppress(Navigated):  # the next page has to say
                if await self.evaluate(f"Boolean({script})"):
                    return
            if late:
                raise TimeoutError(f"never true: {script}; errors: {self.errors}")
            await asyncio.sleep(0.02)

    async def open(self, url: str) -> None:
        """Go to an address; does not wait for it to load."""
        await self.send("Page.navigate", url=url)

    async def key(self, key: str) -> None:
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        await self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        await self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def size(self, width: int, height: int) -> None:
        """Set the size of the window's inside, in px."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def screenshot(self) -> bytes:
        """Return what is seen as a PNG."""
        result = await self.send("Page.captureScreenshot", format="png")
        return base64.b64decode(result["data"])

    async def close(self) -> None:
        """Stop listening."""
        self._reader.cancel()
        await self._socket.close()


@asynccontextmanager
async def chromium(program: str) -> AsyncIterator[Tab]:
    """Start a browser with a profile of its own and no network, and yield its page."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            program,
            "--headless=new",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            *(["--no-sandbox"] if os.getuid() == 0 else []),
            "about:blank",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            async with aiohttp.ClientSession() as session:
                port = await _port(Path(profile) / "DevToolsActivePort", process)
                async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                    pages = [page for page in await answer.json() if page["type"] == "page"]
                socket = await session.ws_connect(
                    pages[0]["webSocketDebuggerUrl"], max_msg_size=1 << 28
                )
                tab = Tab(socket)
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await tab.send(f"{domain}.enable")
                try:
                    yield tab
                finally:
                    await tab.close()
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _port(file: Path, process: asyncio.subprocess.Process) -> int:
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        if process.returncode is not None:
            raise RuntimeError(f"Chromium ended with code {process.returncode}")
        if (port := _written(file)) is not None:
            return port
        await asyncio.sleep(0.05)
    raise TimeoutError("Chromium did not say where it listens")


def _written(file: Path) -> int | None:
    if not file.exists() or "\n" not in (text := file.read_text()):
        return None
    return int(text.splitlines()[0])
