"""Whether a running server serves what the trainer trains."""

from __future__ import annotations

from vf.inference.vllm.admin import Admin, Refused
from vf.runtime.errors import ConfigError, EngineError


def check_served(admin: Admin, base_url: str, model: str, max_seq_len: int) -> None:
    """See that a server speaks OpenAI's API, and serves the model with enough context.

    Raises:
        ConfigError: It does not; the message says what it does instead.
    """
    try:
        models = admin.get("/v1/models")
        cards = {card["id"]: card for card in models["data"]}
    except Refused as error:
        hint = "; name the variable with the key in inference.api_key_env"
        raise ConfigError(f"{error}{hint if error.status in (401, 403) else ''}") from error
    except EngineError as error:
        raise ConfigError(f"inference.base_url: no server answers: {error}") from error
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"inference.base_url = {base_url!r} is not OpenAI-compatible: /models has no list of "
            f"models (missing: {error})"
        ) from error
    card = cards.get(model)
    if card is None:
        raise ConfigError(
            f"the server at {base_url} serves {', '.join(cards) or 'nothing'}, but not {model!r}; "
            f"start it with --served-model-name {model}"
        )
    context = card.get("max_model_len")
    if context is not None and context < max_seq_len:
        raise ConfigError(
            f"the server's context is {context} tokens, less than trainer.args.max_seq_len = "
            f"{max_seq_len}; lower that, or raise the server's --max-model-len"
        )


def check_tokenizer(admin: Admin, model: str, text: str, token_ids: list[int]) -> None:
    """See that the server encodes a text as the trainer does, if it tells.

    Raises:
        ConfigError: It does not; the message says where they part.
    """
    body = {"model": model, "prompt": text, "add_special_tokens": False}
    try:
        theirs = admin.post("/tokenize", body)["tokens"]
    except (Refused, KeyError, TypeError):
        return  # not every server tells; the probe of the logprobs would notice too
    if theirs == token_ids:
        return
    pairs = zip(token_ids, theirs, strict=False)
    place = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(token_ids), len(theirs)))
    raise ConfigError(
        f"the server's tokenizer differs from the trainer's: token {place} of a test prompt is "
        f"{theirs[place : place + 1]} there and {token_ids[place : place + 1]} here; serve the "
        "same model, or a copy with the same tokenizer files"
    )
