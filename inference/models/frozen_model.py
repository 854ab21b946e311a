"""A checkpoint that answers in this process, and that nothing trains."""

from __future__ import annotations

import asyncio
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from vf.inference.completions import Completion
from vf.inference.model import Conversation, Reply, Sampling
from vf.inference.model_files import Checkpoint
from vf.inference.models.token_model import TokenModel
from vf.runtime.errors import ConfigError

if TYPE_CHECKING:
    from vf.inference.embedded.embedded_engine import EmbeddedEngine

MAX_REQUESTS = 64  # decoded at once; the rest wait
CONTEXT = 4096  # tokens, unless the model has fewer

_lock = threading.Lock()
_open: dict[str, TokenModel] = {}  # by the checkpoint's folder or name


class FrozenModel:
    """A checkpoint that is loaded beside the run when it is first asked, once for the process.

    It needs memory of its own: for a large model, serve it, and ask it by its URL.

    Args:
        model: A folder with a model or an adapter, one of a run's checkpoints, such as
            ``runs/x/checkpoints/best``, ``tiny``, or a hub name.
        where: The setting that names it, for the error.

    Attributes:
        model: What it is called.

    Raises:
        ConfigError: If there is no such model.
    """

    def __init__(self, model: str, where: str = "checkpoint") -> None:
        self.model = model
        self._checkpoint = _find(model, where)

    async def respond(self, conversation: Conversation, sampling: Sampling) -> Reply:
        """Answer, with the weights as they were when the model was first asked.

        Raises:
            ModelError: If the engine failed.
            ContextFull: If the context has no room for one more token.
        """
        key = str(self._checkpoint.adapter or self._checkpoint.base)
        if key not in _open:
            await asyncio.to_thread(_load, key, self._checkpoint)
        return await _open[key].respond(conversation, sampling)

    async def close(self) -> None:
        """Do nothing: other episodes ask it, too, until the process ends."""


@cache  # every episode asks, and of a hub name the hub is asked
def _find(model: str, where: str) -> Checkpoint:
    """Return where a model lies, in a run's checkpoint too.

    Raises:
        ConfigError: If there is no such model; the message says which setting names it.
    """
    path = Path(model).expanduser()
    if (path / "checkpoints").is_dir():
        raise ConfigError(
            f"{where} = {model!r} is a run: name one of its checkpoints, such as "
            f"{str(path / 'checkpoints' / 'best')!r}"
        )
    try:
        return Checkpoint.find(str(path / "model") if (path / "model").is_dir() else model)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _load(key: str, checkpoint: Checkpoint) -> None:
    from vf.inference.embedded.embedded_engine import EmbeddedEngine
    from vf.inference.models.local_model import load_renderer
    from vf.inference.settings import EmbeddedSettings

    with _lock:
        if key in _open:
            return
        room = min(CONTEXT, checkpoint.context() or CONTEXT)
        renderer = load_renderer(checkpoint, EmbeddedSettings())
        engine = EmbeddedEngine(checkpoint.load(), max_seq_len=room, max_requests=MAX_REQUESTS)
        engine.start()
        _open[key] = TokenModel(_Direct(engine), renderer, max_seq_len=room)


class _Direct:
    """Asks an engine of this process."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine

    async def complete(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        stop_token_ids: list[int],
        conversation: str = "",
    ) -> Completion:
        return await self._engine.generate(prompt_ids, sampling, stop_token_ids)
