"""API keys: read from environment variables, and kept out of every message."""

from __future__ import annotations

import base64
import html
import logging
import os
import re
import traceback
from functools import cache
from typing import Any
from urllib.parse import unquote

from vf.runtime.errors import ConfigError

KEY, URL = "OPENAI_API_KEY", "OPENAI_BASE_URL"  # the variables of OpenAI's clients
HIDDEN = "[API key]"
_AROUND = " \t\r\n\v\f\0\ufeff\u200b\u2060\u00a0"  # what files and editors leave around a key
# What the name of a setting or a parameter that holds a key ends with.
SECRET_NAME = re.compile(
    r"(^|[_-])(api_?key|key|token|secret|password|authorization)$", re.IGNORECASE
)
_URL = re.compile(r"https?://[^\s\"'<>]{1,2000}")
_MOST_URL = 2000  # characters
_DATA = 512  # characters of base64 that are data, and nothing to read
_BASE64 = re.compile(rf"[A-Za-z0-9+/]{{{_DATA},}}={{0,2}}")
_LEAST = 6  # characters: a shorter key, such as "none", is no secret
_KEY = re.compile(r"(?=.*[0-9])([a-z]+_\w{16,}|\w{32,})|.*[^A-Za-z0-9_].*|[0-9].*", re.DOTALL)


def clean_key(key: str, where: str) -> str:
    """Return a key without what copying has left around it; ``""`` if there is nothing else.

    Args:
        key: The key.
        where: The setting that holds it, for the error.

    Raises:
        ConfigError: If it holds something that no HTTP header can.
    """
    cleaned = key.strip(_AROUND)
    if re.fullmatch("[!-~]*", cleaned) is None:
        raise ConfigError(
            f"{where} holds a key with a blank, a line break or a character beyond ASCII in it, "
            "which no HTTP header can hold; copy the key again"
        )
    return cleaned


def read_key(variable: str, where: str = "") -> str | None:
    """Return the key in an environment variable; None if there is none.

    Args:
        variable: Its name.
        where: The beginning of the error: the setting that names it, say.

    Raises:
        ConfigError: If it holds something that no HTTP header can.
    """
    return clean_key(os.environ.get(variable) or "", f"{where}the variable {variable}") or None


def check_variable(name: str) -> str:
    """Return the name of a variable that holds a key, if it may be one.

    Raises:
        ValueError: If it looks like the key itself, which is not shown.
    """
    if name not in os.environ and _KEY.fullmatch(name):
        raise ValueError(
            "must be the name of an environment variable, such as OPENAI_API_KEY, and looks like a "
            "key itself, which belongs in the variable and in no file"
        )
    return name


def in_url(url: str | None) -> tuple[str, ...]:
    """Return the credentials that a URL holds: ``https://user:KEY@host`` or ``?api_key=KEY``."""
    address, _, query = (url or "").partition("?")
    host = address.partition("://")[2].partition("/")[0]
    credentials = host.rpartition("@")[0]
    user, _, password = credentials.partition(":")
    secrets = [password or user]
    if password:  # as an HTTP client sends them
        basic = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
        secrets.append(basic.rstrip("="))
    for name, _, value in (field.partition("=") for field in query.partition("#")[0].split("&")):
        if SECRET_NAME.search(name):
            secrets.append(value)
    return tuple(
        dict.fromkeys(
            form for text in secrets if text not in ("", HIDDEN) for form in (text, unquote(text))
        )
    )


def hide_urls(value: Any) -> Any:
    """Return a value of JSON whose texts that are URLs show no credentials."""
    if isinstance(value, str):
        return hide(value, *in_url(value)) if "://" in value and len(value) < _MOST_URL else value
    if isinstance(value, dict):
        return {name: hide_urls(entry) for name, entry in value.items()}
    return [hide_urls(entry) for entry in value] if isinstance(value, list) else value


def hide_in_text(text: str) -> str:
    """Return a text in which no URL shows credentials, and without images and other data."""
    return _URL.sub(lambda url: hide(url[0], *in_url(url[0])), without_data(text))


def without_data(text: str) -> str:
    """Return a text in which long runs of base64 are cut off, such as those of images."""
    return text if len(text) < _DATA else _BASE64.sub(lambda run: f"{run[0][:16]}...", text)


class _HidesUrls(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = hide_in_text(record.getMessage()), ()
        return True


_hides_urls = _HidesUrls()


def hide_in_logs() -> None:
    """See that the HTTP clients' own logs, which hold the URL of each request, show no key."""
    for name in ("httpx", "httpx2", "openai._base_client"):
        logging.getLogger(name).addFilter(_hides_urls)  # once, however often


def hide(text: str, *keys: str | None) -> str:
    """Return a text without keys, which a server may have repeated."""
    for key in keys:
        if key and len(key) >= _LEAST:
            text = _spellings(key).sub(HIDDEN, text)
    return text


@cache
def _spellings(key: str) -> re.Pattern[str]:
    """Return a pattern of a key, as it is and as JSON, URLs and HTML may write its signs."""
    return re.compile("".join(map(_spelling, key)))


def _spelling(sign: str) -> str:
    if sign.isalnum():
        return sign
    number = ord(sign)
    escaped = rf"\\u(?i:{number:04x})|%(?i:{number:02x})|&#(?:{number}|x(?i:{number:x}));"
    return rf"(?:\\?{re.escape(sign)}|{escaped}|{re.escape(html.escape(sign))})"


def tells(error: BaseException, *keys: str | None) -> bool:
    """Return whether an error's traceback holds a key."""
    return hide(printed := "".join(traceback.format_exception(error)), *keys) != printed
