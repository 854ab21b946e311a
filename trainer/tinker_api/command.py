"""`vf-rl serve --train`: the Tinker API, beside the OpenAI-compatible one."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from vf.runtime.errors import ConfigError
from vf.runtime.http_door import is_loopback
from vf.runtime.terminal import make_console

if TYPE_CHECKING:
    from vf.inference.model_files import Checkpoint
    from vf.inference.rendering.renderer import Renderer
    from vf.inference.settings import EmbeddedSettings, VllmSettings

FOLDER = "runs/tinker"
PREFIXES = ("tml-", "sk-")
LINE_SECONDS = 60.0  # between two lines about each model


def check_training(
    args: argparse.Namespace, checkpoint: Checkpoint, settings: EmbeddedSettings | VllmSettings
) -> str | None:
    """Return the key that clients must send; None for none.

    Raises:
        ConfigError: If the arguments suit no server of the Tinker API.
    """
    if not args.train:
        for name in ("folder", "api_key_var"):
            if getattr(args, name) is not None:
                raise ConfigError(f"--{name.replace('_', '-')} is for --train")
        return None
    if settings.engine != "embedded":
        raise ConfigError("--train is for the embedded engine, which samples with many adapters")
    if checkpoint.adapter is not None:
        raise ConfigError(
            f"--train: {args.model} is an adapter; write a whole model with vf-rl export, "
            "and serve that"
        )
    if args.api_key_var is None:
        if not is_loopback(args.host):
            raise ConfigError(
                f"--host {args.host}: others could reach the server; name the environment variable "
                "with the key that they must send in --api-key-var"
            )
        return None
    key = os.environ.get(args.api_key_var)
    if not key:
        raise ConfigError(f"--api-key-var {args.api_key_var}: it is not set, or empty")
    if not key.startswith(PREFIXES):
        raise ConfigError(
            f"--api-key-var {args.api_key_var}: clients refuse keys that do not begin with tml- "
            "(Tinker's) or sk- (MinT's)"
        )
    return key


def start_training(
    stack: ExitStack,
    name: str,
    checkpoint: Checkpoint,
    settings: EmbeddedSettings,
    renderer: Renderer,
    max_seq_len: int,
    folder: Path,
    key: str | None,
) -> tuple[list[tuple[str, str]], Callable[[], None]]:
    """Start the server, which ``stack`` stops.

    Returns:
        What is served, and how to ask it; and what to call every second.

    Raises:
        ConfigError: If the model cannot be loaded, or the folder cannot be written to.
        EngineError: If the server does not start.
    """
    from vf.trainer.tinker_api.server import TinkerServer

    server = TinkerServer(
        name, checkpoint, settings, renderer, max_seq_len=max_seq_len, folder=folder, key=key
    )
    stack.callback(server.stop)
    server.start()
    url, console = server.base_url, make_console(stderr=True)
    printed = time.monotonic()

    def check() -> None:
        nonlocal printed
        server.check()
        if time.monotonic() - printed >= LINE_SECONDS:
            printed = time.monotonic()
            for line in server.lines():
                console.print(line, highlight=False)

    body = {"model": name, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 32}
    header = ["-H", "Content-Type: application/json"]
    curl = ["curl", f"{url}/v1/chat/completions", *header, "-d", json.dumps(body)]
    key_hint = "any that begins with tml-" if key is None else "the one in --api-key-var"
    return [
        ("model", f"{name}: adapters are trained and sampled, {max_seq_len:,} tokens of context"),
        ("URL", url),
        ("checkpoints", str(folder)),
        ("client", f"tinker.ServiceClient(base_url={url!r}); its api_key is {key_hint}"),
        ("try", shlex.join(curl)),
        ("stop", "Ctrl-C"),
    ], check
