"""One request to an API before anything starts, and what its failure means."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, cast

from vf.evaluation.eval_config import EvalConfig, ModelConfig
from vf.evaluation.models import api_key, chat_model
from vf.inference.model import NEUTRAL, ContextFull, Conversation, Sampling
from vf.inference.models.chat_answers import Refused
from vf.inference.models.chat_model import ChatModel
from vf.inference.wire import Garbled, split_query
from vf.runtime.api_keys import KEY, URL, hide_in_logs, hide_urls, in_url
from vf.runtime.certificates import verify_for
from vf.runtime.errors import ConfigError, ModelError, did_you_mean
from vf.traces.images import BadImage, holds_images
from vf.traces.messages import Message, as_messages
from vf.traces.task import Task

TRY_TOKENS = 16  # enough for a server with a least number, and cheap
TRY_SECONDS = 60.0
SHOWN_MODELS = 30
LISTINGS = 3  # repeated requests for the list of models, after a 429, say


async def try_endpoint(
    config: ModelConfig,
    evaluation: EvalConfig,
    tools: Sequence[dict[str, Any]],
    tasks: Sequence[Task] = (),
) -> str | None:
    """Ask an API one short question, as patiently as the rollouts will ask theirs.

    Args:
        config: The model at the API.
        evaluation: The settings of the evaluation, sampling among them.
        tools: The tools of an environment, in OpenAI's format: a server may refuse them.
        tasks: The tasks: the first image in them is shown, too.

    Returns:
        What the user should know though it answered, or None.

    Raises:
        ConfigError: If it is unreachable, is no such API, does not know the model (the message
            lists those that it knows), requires another key, or refuses images that tasks have.
    """
    key = api_key(config)
    model = chat_model(config, TRY_SECONDS)
    where = hide_urls(config.base_url or os.environ.get(URL)) or "OpenAI's API"
    sampling = evaluation.sampling.with_(max_tokens=min(TRY_TOKENS, evaluation.max_tokens), seed=0)
    try:
        question = Conversation([Message("user", "Say hello.")], list(tools))
        if (task := next((t for t in tasks if holds_images(t.prompt)), None)) is not None:
            await _show(model, question, task, sampling, f"{config.model!r} at {where}")
        else:
            await model.respond(question, sampling)
    except ModelError as error:
        served = None if _unreachable(error) else await _models(config, key)
        problem = _meaning(config, error, where, None if served is None else list(served), key)
        raise ConfigError(problem + _without_tools(config, error, tools)) from None
    except ContextFull:
        size, _ = (await _models(config, key) or {}).get(config.model, (None, ""))
        raise ConfigError(
            f"{where}: the context of {config.model!r}{_tokens(size)} has no room for the "
            "environment's tools and an answer. Serve it with a longer context"
        ) from None
    finally:
        await model.close()
    served = await _models(config, key)
    size, owner = (served or {}).get(config.model, (None, ""))
    config.sends_every_field = owner == "vllm"
    if served and config.model not in served:
        return f"{where} answers as {config.model!r}, though it lists only {_listed(list(served))}"
    if size is not None and evaluation.max_tokens >= size:
        return (
            f"{config.model!r} has a context of {size:,} tokens: an answer ends where it is full, "
            f"before max_tokens = {evaluation.max_tokens:,}"
        )
    return None


async def _show(
    model: ChatModel, request: Conversation, task: Task, sampling: Sampling, where: str
) -> None:
    """Show the first image of a task.

    Raises:
        ConfigError: If it is refused, where the question alone is answered.
    """
    try:
        images = [image for message in as_messages(task.prompt) for image in message.images]
    except BadImage:  # its episode says so, or fetches it
        images = []
    question = Message("user", cast(str, ["Say hello.", *images[:1]]))
    try:
        await model.respond(Conversation([question], request.tools), sampling)
    except Refused as error:
        await model.respond(request, sampling)
        raise ConfigError(
            f"task {task.id!r} holds an image, and {where} takes none ({error}). Measure a model "
            "that sees, or choose another environment"
        ) from None


def describe_sampling(config: EvalConfig, model: ModelConfig) -> str:
    """Say how answers of an API are sampled, and what of that is not for us to say."""
    sampling = config.sampling
    sent = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    open_fields = []
    for name, neutral in NEUTRAL.items():
        value = getattr(sampling, name)
        if model.sends_every_field or value != neutral:
            sent[name] = value
        elif name not in sent and name not in model.extra_body:
            open_fields.append(name)
    text = ", ".join(f"{name} = {value:g}" for name, value in sent.items())
    own = f"; {', '.join(open_fields)} as the API has it" if open_fields else ""
    return f"{model.name}: answers are sampled with {text}{own}"


def _tokens(size: int | None) -> str:
    return "" if size is None else f", {size:,} tokens,"


def _meaning(
    config: ModelConfig, error: ModelError, where: str, served: list[str] | None, key: str | None
) -> str:
    cause = error.__cause__
    if isinstance(cause, TimeoutError):
        return f"{where} did not answer within {TRY_SECONDS:g} s"
    if _unreachable(error):
        return (
            f"no server answers at {where} ({_root(cause or error)}). Is it running, and is the "
            "address right, up to and including /v1?"
        )
    if isinstance(error, Refused) and error.status in (401, 403):
        if not key and in_url(config.base_url or os.environ.get(URL)):
            return f"{where} rejected the credentials in its URL ({error})"
        hint = "the key in it was rejected" if key else "it is not set"
        variable = config.api_key_env or KEY
        return f"{where} requires an API key: {variable}: {hint} ({error})"
    if served is not None and config.model not in served:
        return (
            f"{where} does not know the model {config.model!r}."
            f"{did_you_mean(config.model, served)} It serves: {_listed(served)}"
        )
    lost = isinstance(error, Refused) and error.status == 404
    if served is None and (lost or isinstance(cause, Garbled)):
        return (
            f"{where} is not an OpenAI-compatible API ({error}). Give its address up to and "
            "including /v1"
        )
    return f"{where} rejected a test request: {error}"


def _without_tools(config: ModelConfig, error: ModelError, tools: Sequence[Any]) -> str:
    """Return what to do where an API refuses tools; ``""`` where it does not speak of them."""
    if not tools or config.tool_style == "text" or not isinstance(error, Refused):
        return ""
    names_tools = re.search(r"\b(tools?|function[ _-]call\w*)\b", error.words or str(error))
    way = ". To list the tools in the prompt, and read calls from the text, add --tool-style text"
    return way if names_tools else ""


def _unreachable(error: ModelError) -> bool:
    import openai

    return isinstance(error.__cause__, openai.APIConnectionError)


async def _models(config: ModelConfig, key: str | None) -> dict[str, tuple[int | None, str]] | None:
    """Return the models that the server lists: the size of their context if it tells, the owner.

    Returns:
        None if it lists no models.
    """
    import openai

    hide_in_logs()
    address, query = split_query(config.base_url or os.environ.get(URL))
    client = openai.AsyncOpenAI(
        base_url=address,
        default_query=query,
        api_key=key or "none",
        timeout=TRY_SECONDS,
        max_retries=LISTINGS,
        http_client=openai.DefaultAsyncHttpxClient(
            verify=verify_for(config.base_url or os.environ.get(URL))
        ),
    )
    try:
        async with client:
            page = await client.models.list()
            return {
                str(entry.id): (_size(entry), str(getattr(entry, "owned_by", "")))
                for entry in page.data
            }
    except (openai.OpenAIError, ValueError, AttributeError, TypeError):
        return None


def _size(entry: Any) -> int | None:
    size = getattr(entry, "max_model_len", None)
    return size if isinstance(size, int) else None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_MODELS} more" if len(names) > SHOWN_MODELS else ""
    return (", ".join(names[:SHOWN_MODELS]) or "nothing") + more


def _root(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__
