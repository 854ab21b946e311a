"""From ``[[models]]`` to a model that answers: behind an API, or on an engine started here."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vf.environments.environment import Environment
from vf.evaluation.eval_config import EvalConfig, ModelConfig, looks_local, slug
from vf.evaluation.scripts import oracle_of
from vf.inference.model import Model
from vf.inference.model_files import Checkpoint, find_model, resolve_model
from vf.inference.models.scripted_model import ScriptedModel
from vf.inference.rendering.shipped import find_template
from vf.inference.settings import EmbeddedSettings, VllmSettings
from vf.runtime.api_keys import KEY, URL, read_key
from vf.runtime.errors import ConfigError
from vf.runtime.garbage import no_collections
from vf.runtime.temporary import temporary_folder
from vf.runtime.toml import checked
from vf.runtime.uninterruptible import await_for
from vf.traces.messages import Message
from vf.traces.task import Task

if TYPE_CHECKING:
    from vf.inference.models.chat_model import ChatModel

Say = Callable[[str], None]
PEEK = 1 << 20  # bytes at either end of a weights file that tell it from another
WATCH_SECONDS = 1.0  # between two looks at whether the engine lives
FOR_TRAINING = ("publish", "keep_cache", "sleep", "logprob_tolerance")
PACKAGES = ("torch", "transformers", "starlette", "uvicorn", "httpx")  # of vf-rl[train]
MODEL_FILES = ("*.safetensors", "*.bin", "*.json", "*.jinja", "*.model", "*/*.jinja")


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model that can be asked.

    Attributes:
        model: Who answers.
        ready: Waits until it can be asked; None for an API, which its client waits for.
        failure: Ends with an error if the engine dies; None for an API.
        of: Returns who answers in a rollout of a task, where that differs.
    """

    model: Model
    ready: Callable[[], Awaitable[None]] | None = None
    failure: asyncio.Task[None] | None = None
    of: Callable[[Environment, Task], Model] | None = None


def _nothing(messages: Sequence[Message]) -> str:
    return ""


def _oracle(environment: Environment, task: Task) -> Model:
    script = oracle_of(environment, task)
    if script is None:
        raise ConfigError(
            f"the environment {environment.id} knows no solution of task {task.id!r}; its oracle() "
            "returns what solves it"
        )
    return ScriptedModel(script)


_SCRIPTS: dict[str, Callable[[Environment, Task], Model]] = {
    "oracle": _oracle,
    "nop": lambda environment, task: ScriptedModel(_nothing),
}


def check_script(config: ModelConfig, environment: Environment, tasks: Sequence[Task]) -> None:
    """Find out whether a script can act on tasks.

    Raises:
        ConfigError: If the environment knows no solution of one.
    """
    for task in tasks:
        _SCRIPTS[config.model](environment, task)


def engine_settings(config: ModelConfig) -> EmbeddedSettings | VllmSettings:
    """Return the settings of an engine that is started here.

    Raises:
        ConfigError: If one is wrong, or only has an effect in training.
    """
    for name in FOR_TRAINING:
        if name in config.inference:
            raise ConfigError(
                f"model {config.name}: inference.{name} is for training; leave it out"
            )
    raw = {**config.inference, "engine": config.engine}
    if config.chat_template is not None:
        raw["chat_template"] = config.chat_template
    if config.tool_style is not None:
        raw["tool_style"] = config.tool_style
    if config.engine == "vllm":
        return checked(VllmSettings, raw, under="inference")
    return checked(EmbeddedSettings, raw, under="inference")


def fingerprint(config: ModelConfig) -> dict[str, str] | None:
    """Return a digest of each of a local model's files: of size, beginning and end.

    So an evaluation is never resumed after the checkpoint in that folder, the model under an
    adapter, or the chat template was replaced. Nothing for an API, and none for a hub name.
    """
    if config.engine in ("api", "script"):
        return None
    names = [config.model, config.tokenizer]
    with suppress(ConfigError):  # a bad model is an error where it is loaded
        names.append(Checkpoint.find(config.model).base)
    digests: dict[str, str] = {}
    for name in dict.fromkeys(name for name in names if name and looks_local(name)):
        folder = Path(resolve_model(name)).expanduser()
        for file in sorted(path for pattern in MODEL_FILES for path in folder.glob(pattern)):
            digests.setdefault(str(file.relative_to(folder)), _digest(file))
    if config.chat_template and (file := Path(config.chat_template).expanduser()).is_file():
        digests["chat_template"] = _digest(file)
    return digests or None


def _digest(file: Path) -> str:
    size = file.stat().st_size
    digest = hashlib.blake2b(f"{size}:".encode(), digest_size=8)
    with file.open("rb") as content:
        digest.update(content.read(PEEK))
        content.seek(max(0, size - PEEK))
        digest.update(content.read())
    return digest.hexdigest()


def api_key(config: ModelConfig) -> str | None:
    """Return the key of an API, if there is one.

    Raises:
        ConfigError: If the variable that it should be in is not set.
    """
    name = config.api_key_env or KEY
    key = read_key(name, f"model {config.name}: ")
    ours = config.base_url or os.environ.get(URL)  # a server that may need none
    if not key and (config.api_key_env or not ours):
        hint = (
            ""
            if ours
            else ", or name another server with -b. For a local model, name a folder, a hub name "
            "(OWNER/NAME) or tiny"
        )
        raise ConfigError(f"model {config.name}: no API key: set {name}{hint}")
    return key


def chat_model(config: ModelConfig, timeout: float) -> ChatModel:
    """Return a model at an API.

    Raises:
        ConfigError: If the variable that its key should be in is not set.
    """
    from vf.inference.models.chat_model import ChatModel

    return ChatModel(
        config.model,
        base_url=config.base_url,
        api_key=api_key(config),
        timeout=timeout,
        extra_body=config.extra_body,
        tool_style=config.tool_style or "template",
        request_fields=config.request_fields,
        send_reasoning=config.send_reasoning,
        every_field=config.sends_every_field,
    )


@asynccontextmanager
async def open_model(
    config: ModelConfig, evaluation: EvalConfig, *, tools: bool, sees: bool, folder: Path, say: Say
) -> AsyncIterator[OpenModel]:
    """Start whatever answers for a model, and stop it at the end of the block.

    Args:
        config: The model.
        evaluation: The settings of the evaluation, sampling among them.
        tools: Whether any of the environments has tools.
        sees: Whether any of them shows images.
        folder: For the log of a server.
        say: Told what is being waited for.

    Raises:
        ConfigError: If something is missing or does not fit.
        EngineError: If the engine does not start.
    """
    if config.engine == "script":
        yield OpenModel(ScriptedModel(_nothing), of=_SCRIPTS[config.model])
        return
    if config.engine == "api":
        chat = chat_model(config, evaluation.generation_timeout)
        try:
            yield OpenModel(chat)
        finally:
            await chat.close()
        return
    async with _local(config, evaluation, tools=tools, sees=sees, folder=folder, say=say) as opened:
        yield opened


@asynccontextmanager
async def _local(
    config: ModelConfig, evaluation: EvalConfig, *, tools: bool, sees: bool, folder: Path, say: Say
) -> AsyncIterator[OpenModel]:
    settings = engine_settings(config)
    checkpoint = Checkpoint.find(config.model)
    if isinstance(settings, VllmSettings) and config.tokenizer is not None:
        args = {"tokenizer": resolve_model(config.tokenizer), **settings.args}
        settings = settings.model_copy(update={"args": args})
    say(f"{config.name}: loading torch and transformers ...")
    await await_for(_load)
    from vf.inference.models.local_model import build_local_engine, load_renderer
    from vf.inference.models.token_model import TokenModel
    from vf.inference.rendering.template_probe import HIDES_TOOLS, check_kind, probe, shows_tools

    renderer = await await_for(
        lambda: load_renderer(checkpoint, settings, tokenizer=config.tokenizer, sees=sees)
    )
    kind = "tools" if tools else "plain"
    check_kind(probe(renderer, [kind]), kind)
    hides_tools = tools and not shows_tools(renderer)
    context = await await_for(checkpoint.context)
    max_seq_len = min(config.max_seq_len, context or config.max_seq_len)
    async with AsyncExitStack() as stack:
        if hides_tools:
            say(warning := f"WARNING: {config.name}: {HIDES_TOOLS}")
            stack.callback(say, warning)  # again, above the results
        scratch = stack.enter_context(temporary_folder("eval"))
        say(f"{config.name}: loading the model ...")
        build = partial(
            build_local_engine,
            config.name,
            checkpoint,
            settings,
            renderer,
            max_seq_len=max_seq_len,
            scratch=scratch,
            log_path=folder / f"{slug(config.name)}.log",
        )
        engine = await await_for(build)
        stack.callback(engine.stop)
        say(f"{config.name}: starting the {config.engine} engine, {max_seq_len} tokens of context")
        await asyncio.to_thread(engine.start, say)
        await asyncio.to_thread(engine.publish, 0)
        sampler = engine.sampler(evaluation.generation_timeout)
        stack.push_async_callback(sampler.close)

        async def watch() -> None:
            while True:
                await asyncio.to_thread(engine.check)
                await asyncio.sleep(WATCH_SECONDS)

        watching = asyncio.create_task(watch())
        stack.callback(watching.cancel)
        model = TokenModel(
            sampler,
            renderer,
            max_seq_len=max_seq_len,
            thinking_history=settings.thinking_history,
        )
        yield OpenModel(model, engine.leases.available, watching)


def _load() -> None:
    with no_collections():
        import transformers

        import vf.inference.models.local_model  # noqa: F401
    transformers.utils.logging.disable_progress_bar()  # it would write into our display


def check_local(config: ModelConfig) -> None:
    """Find out, before anything is loaded, what is wrong with a local model.

    Raises:
        ConfigError: If it or a package to run it is not there, or a setting is wrong.
    """
    settings = engine_settings(config)
    try:
        Checkpoint.find(config.model)
    except ConfigError as error:
        if looks_local(config.model):
            raise
        raise ConfigError(f"{error}. For a model behind an API, name the server with -b") from None
    if config.tokenizer is not None:
        find_model(config.tokenizer, f"model {config.name}: tokenizer = {config.tokenizer!r}")
    if settings.chat_template is not None:
        find_template(settings.chat_template)
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"a local model needs the package {missing[0]!r}: pip install 'vf-rl[train]'"
        )
    if isinstance(settings, VllmSettings):
        from vf.inference.vllm.check_settings import check_settings

        check_settings(settings)
