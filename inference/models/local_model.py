"""A checkpoint that only answers: the engine for it, outside of any training."""

from __future__ import annotations

from pathlib import Path

from vf.inference.embedded.embedded_server import EmbeddedServer
from vf.inference.engine import Engine
from vf.inference.model_files import Checkpoint, resolve_model
from vf.inference.rendering.renderer import Renderer
from vf.inference.rendering.vision import Vision
from vf.inference.settings import EmbeddedSettings, EngineSettings, VllmSettings

TOKENIZER_TEXT = "\n\tfor i in range(1024): x += 3.14  # naïve — Straße 東京 🙂"


def load_renderer(
    checkpoint: Checkpoint,
    settings: EngineSettings,
    *,
    tokenizer: str | None = None,
    sees: bool = False,
) -> Renderer:
    """Return the renderer of a checkpoint.

    Args:
        checkpoint: The model's checkpoint.
        settings: ``[inference]``.
        tokenizer: The folder or name that has tokenizer and chat template, if not the model's.
        sees: Whether it renders images.

    Raises:
        ConfigError: If it cannot be loaded, or the model is of a type that reads no images here.
    """
    here, served = checkpoint.adapter, isinstance(settings, VllmSettings)
    if tokenizer is None and here is not None and (here / "tokenizer_config.json").is_file():
        tokenizer = str(here)
    return Renderer.from_pretrained(
        resolve_model(tokenizer or checkpoint.base),
        settings.template_args,
        settings.chat_template,
        settings.tool_style,
        Vision.from_pretrained(checkpoint.base, served=served) if sees else None,
    )


def build_local_engine(
    name: str,
    checkpoint: Checkpoint,
    settings: EmbeddedSettings | VllmSettings,
    renderer: Renderer,
    *,
    max_seq_len: int,
    scratch: Path,
    log_path: Path,
) -> Engine:
    """Return the engine that serves a checkpoint, not started. Publish once before it is asked.

    Args:
        name: The name of the model in requests.
        checkpoint: The model's checkpoint.
        settings: ``[inference]``.
        renderer: Its renderer.
        max_seq_len: Tokens in one context at most.
        scratch: For an adapter on its way to the server.
        log_path: The file for the server's output.

    Raises:
        ConfigError: If it cannot be loaded, or the engine is not installed here.
    """
    if isinstance(settings, EmbeddedSettings):
        module = checkpoint.load(sees=renderer.vision is not None)
        return EmbeddedServer(settings, module, renderer, name, max_seq_len=max_seq_len)
    import torch

    from vf.inference.vllm.adapter_formats import adapter_format
    from vf.inference.vllm.publish_methods import FIXED
    from vf.inference.vllm.replicated_engine import vllm_engine
    from vf.inference.vllm.server_args import Adapters

    adapters = None
    if checkpoint.rank is not None:
        adapters = Adapters(checkpoint.rank, form=adapter_format(checkpoint.config()))
    return vllm_engine(
        settings,
        checkpoint.base,
        checkpoint,
        method="lora" if checkpoint.adapter is not None else FIXED,
        folder=scratch,
        log_path=log_path,
        max_seq_len=max_seq_len,
        adapters=adapters,
        cpu=not torch.cuda.is_available(),
        shared_gpu=False,
        vision=renderer.vision,
        encoded=(
            TOKENIZER_TEXT,
            renderer.tokenizer.encode(TOKENIZER_TEXT, add_special_tokens=False),
        ),
    )
