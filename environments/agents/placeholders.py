"""The placeholders in a program's command: ``{prompt}``, ``{url}`` and so on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from textwrap import shorten

from vf.inference.endpoint.address import Endpoint
from vf.runtime.errors import ConfigError, did_you_mean
from vf.traces.messages import as_messages
from vf.traces.task import Task

NAMES = ("prompt", "task", "url", "root", "key", "model")
_SEE_FILE = "[an image, which is in the file of the task]"
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}|\{([A-Za-z_]\w*)\}")


def check(command: Sequence[str], where: str) -> None:
    """Check the placeholders of a command.

    Args:
        command: Program and arguments.
        where: The setting's name, for the error.

    Raises:
        ConfigError: If there is no such placeholder.
    """
    for item in command:
        for match in _PLACEHOLDER.finditer(item):
            name = match[2]
            if name is not None and name not in NAMES:
                raise ConfigError(
                    f"{where}: there is no placeholder {{{name}}}, in {shorten(item, 60)!r}."
                    f"{did_you_mean(name, NAMES)} There are: "
                    f"{', '.join('{' + name + '}' for name in NAMES)}; to pass the text itself, "
                    f"write {{{{{name}}}}}"
                )


def values(task: Task, endpoint: Endpoint, file: str) -> dict[str, str]:
    """Return what the placeholders stand for.

    Args:
        task: Its prompt is text; of chat messages, their contents, and a note in place of images.
        endpoint: The endpoint as the program sees it.
        file: Path of the file with the task.
    """
    prompt = "\n\n".join(
        "".join(part if isinstance(part, str) else _SEE_FILE for part in message.parts)
        for message in as_messages(task.prompt)
    )
    return {
        "prompt": prompt,
        "task": file,
        "url": endpoint.url,
        "root": endpoint.root,
        "key": endpoint.key,
        "model": endpoint.model,
    }


def fill(command: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Return a command with its placeholders replaced; ``{{name}}`` becomes ``{name}``."""

    def replaced(match: re.Match[str]) -> str:
        return values[match[2]] if match[2] is not None else f"{{{match[1]}}}"

    return [_PLACEHOLDER.sub(replaced, item) for item in command]
