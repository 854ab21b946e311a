"""Settings as they may be shown to others."""

from __future__ import annotations

import re
from typing import Any

from vf.inference.settings import VllmSettings
from vf.trainer.settings.config import Config

HIDDEN = "(hidden)"

_SECRET = re.compile(r"(^|[_-])(api_?key|key|token|secret|password|authorization)$", re.IGNORECASE)


def without_secrets(config: Config) -> Config:
    """Return the settings with what may be a secret hidden.

    Hidden are the server's environment variables, and what is called a key, token, secret or
    password in an environment's or a server's arguments.
    """
    shown = config.model_copy(deep=True)
    shown.env.args = _hide(shown.env.args)
    if isinstance(shown.inference, VllmSettings):
        shown.inference.args = _hide(shown.inference.args)
        shown.inference.env = dict.fromkeys(shown.inference.env, HIDDEN)
    return shown


def _hide(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: HIDDEN if isinstance(entry, str) and _SECRET.search(name) else _hide(entry)
            for name, entry in value.items()
        }
    return [_hide(entry) for entry in value] if isinstance(value, list) else value
