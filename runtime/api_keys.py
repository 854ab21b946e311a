"""API keys: read from environment variables, and kept out of every message."""

from __future__ import annotations

import os
import re
import traceback
from typing import Annotated

from pydantic import AfterValidator

from vf.runtime.errors import ConfigError

KEY, URL = "OPENAI_API_KEY", "OPENAI_BASE_URL"  # the variables of OpenAI's clients
HIDDEN = "[API key]"
_AROUND = " \t\r\n\v\f\0\ufeff\u200b\u2060\u00a0"  # what files and editors leave around a key
_LEAST = 6  # characters: a shorter key, such as "none", is no secret
_KEY = re.compile(r"(?=.*[0-9])([a-z]+_\w{16,}|\w{32,})|.*[^A-Za-z0-9_].*|[0-9].*", re.DOTALL)


def clean_key(key: str, where: str) -> str:
    """Return a key without what copying has left around it; ``""`` if there is nothing else.

    Args:
        key: The key.
        where: What holds it, for the error.

    Raises:
        ConfigError: It holds something that no HTTP header can.
    """
    found = key.strip(_AROUND)
    if re.fullmatch("[!-~]*", found) is None:
        raise ConfigError(
            f"{where} holds a key with a blank, a line break or a character beyond ASCII in it, "
            "which no HTTP header can hold; copy the key again"
        )
    return found


def read_key(variable: str, where: str = "") -> str | None:
    """Return the key in an environment variable; None if there is none.

    Args:
        variable: Its name.
        where: What begins the error: the setting that names it, say.

    Raises:
        ConfigError: It holds something that no HTTP header can.
    """
    return clean_key(os.environ.get(variable) or "", f"{where}the variable {variable}") or None


def check_variable(name: str) -> str:
    """Return the name of a variable that holds a key, if it may be one.

    Raises:
        ValueError: It looks like the key itself, which is not shown.
    """
    if name not in os.environ and _KEY.fullmatch(name):
        raise ValueError(
            "must be the name of an environment variable, such as OPENAI_API_KEY, and looks like a "
            "key itself, which belongs in the variable and in no file"
        )
    return name


KeyVariable = Annotated[str, AfterValidator(check_variable)]


def hide(text: str, key: str | None) -> str:
    """Return a text without a key, which a server may have repeated."""
    return text.replace(key, HIDDEN) if key and len(key) >= _LEAST else text


def tells(error: BaseException, key: str | None) -> bool:
    """Return whether an error's traceback holds a key."""
    return hide(said := "".join(traceback.format_exception(error)), key) != said
