"""Fetching the images of a task's prompt, for an environment that allows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vf.runtime.errors import EnvironmentFailure
from vf.traces.images import MOST_BYTES, Image
from vf.traces.task import Task

SECONDS = 60.0  # for one image


async def with_fetched_images(task: Task) -> Task:
    """Return a task whose prompt has data URLs in place of the images' addresses.

    Raises:
        EnvironmentFailure: If an image cannot be fetched; names the task and the address.
        ConfigError: If what was fetched is no image, or beyond a limit.
    """
    if not isinstance(task.prompt, list):
        return task
    prompt = []
    for entry in task.prompt:
        content = entry.get("content") if isinstance(entry, Mapping) else None
        if isinstance(content, list):
            entry = {**entry, "content": [await _fetched(part, task) for part in content]}
        prompt.append(entry)
    return replace(task, prompt=prompt)


async def _fetched(part: Any, task: Task) -> Any:
    match part:
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            if url.startswith(("http://", "https://")):
                return Image.of(await _fetch(url, task)).to_openai()
    return part


async def _fetch(url: str, task: Task) -> bytes:
    import aiohttp

    what = f"task {task.id!r}: the image {url[:200]!r}"
    try:
        timeout = aiohttp.ClientTimeout(total=SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
            answer.raise_for_status()
            data = bytearray()
            async for chunk in answer.content.iter_chunked(2**16):
                data += chunk
                if len(data) > MOST_BYTES:
                    raise EnvironmentFailure(f"{what} has more than {MOST_BYTES:,} bytes")
            return bytes(data)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise EnvironmentFailure(f"{what} could not be fetched: {reason}") from error
