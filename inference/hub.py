"""Checks in seconds whether a name on the model hub can be loaded."""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from pathlib import Path

from vf.runtime.errors import ConfigError

ANSWER_SECONDS = 5.0


@cache
def check_hub_name(name: str, label: str) -> None:
    """See that a model is on the hub, or in the hub's cache on this machine.

    Transformers asks a hub that does not answer for each of a model's files, five times over. So
    where it does not, and the model is in the cache, this process and its children leave the hub
    alone from now on (``HF_HUB_OFFLINE``). A name that was found is not looked for again.

    Args:
        name: Such as ``Qwen/Qwen3-0.6B``.
        label: The user's own words for it, for the message.

    Raises:
        ConfigError: If it is in neither; the message says where it was looked for.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        return
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError

    nowhere = f"{label}: there is no such folder ({Path(name).absolute()})"
    try:
        cached = isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError as error:
        raise ConfigError(f"{nowhere}, and it is not a name on the hub: {error}") from error
    if constants.HF_HUB_OFFLINE:
        problem = "HF_HUB_OFFLINE is set, so the hub is not asked"
    else:
        try:
            HfApi().model_info(name, timeout=ANSWER_SECONDS)
            return
        except GatedRepoError as error:
            if cached:
                return
            raise ConfigError(
                f"{label}: its owner decides who may load it. Ask for access at "
                f"{constants.ENDPOINT}/{name}, then run `hf auth login`"
            ) from error
        except HfHubHTTPError as error:
            status = error.response.status_code
            if cached or status >= 500:
                return
            raise ConfigError(
                f"{nowhere}, and {constants.ENDPOINT} has no model of this name (it answered "
                f"{status}). Correct it; for a private model, run `hf auth login`"
            ) from error
        except Exception as error:  # which ones depends on the HTTP client of the hub's version
            problem = f"{constants.ENDPOINT} cannot be reached ({error})"
    if not cached:
        raise ConfigError(
            f"{nowhere}, the hub's cache {constants.HF_HUB_CACHE} does not have it, and {problem}. "
            f"Correct the folder's path, or download the model where there is a network (`hf "
            f"download {name} --local-dir FOLDER`) and set model to that folder"
        )
    constants.HF_HUB_OFFLINE = True
    os.environ["HF_HUB_OFFLINE"] = "1"
