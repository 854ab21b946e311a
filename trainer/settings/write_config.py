"""A resolved config as TOML, and without its secrets."""

from __future__ import annotations

import json
from datetime import date, time
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from vf.inference.settings import VllmSettings
from vf.runtime.api_keys import SECRET_NAME, hide_urls
from vf.trainer.settings.config import Config

HIDDEN = "(hidden)"


def to_toml(config: BaseModel) -> str:
    """Return the config as TOML, defaults included; what is None is left out."""
    lines: list[str] = []
    _table(config.model_dump(exclude_none=True), (), lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def without_secrets(config: Config) -> Config:
    """Return the config with possible secrets replaced by :data:`HIDDEN`.

    These are the environment variables of the server and of the cluster's machines, and every
    argument of the environment or the server that is called a key, token, secret or password, and
    the credentials in URLs.
    """
    shown = config.model_copy(deep=True)
    for env in shown.env:
        env.args, env.curriculum_args = _hide(env.args), _hide(env.curriculum_args)
    if isinstance(shown.inference, VllmSettings):
        shown.inference.args = _hide(shown.inference.args)
        shown.inference.base_url = hide_urls(shown.inference.base_url)
        shown.inference.base_urls = hide_urls(shown.inference.base_urls)
        shown.inference.env = dict.fromkeys(shown.inference.env, HIDDEN)
    runtime_env = shown.cluster.runtime_env
    if isinstance(variables := runtime_env.get("env_vars"), dict):
        runtime_env["env_vars"] = dict.fromkeys(variables, HIDDEN)
    shown.cluster.runtime_env = _hide(runtime_env)
    return shown


def _table(
    values: dict[str, Any], path: tuple[str, ...], lines: list[str], many: bool = False
) -> None:
    inner = {key: value for key, value in values.items() if _is_inner(value, path)}
    plain = {key: value for key, value in values.items() if key not in inner}
    if path and (plain or not values):
        name = ".".join(map(_key, path))
        lines += ["", f"[[{name}]]" if many else f"[{name}]"]
    lines += [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    for key, value in inner.items():
        for item in value if isinstance(value, list) else [value]:
            _table(item, (*path, key), lines, many=isinstance(value, list))


def _is_inner(value: Any, path: tuple[str, ...]) -> bool:
    """Return whether a value is written as a table of its own: of lists, only those at the top."""
    tables = not path and isinstance(value, list) and value
    return isinstance(value, dict) or bool(tables and all(isinstance(v, dict) for v in value))


def _key(key: str) -> str:
    return (
        key
        if key.replace("_", "").replace("-", "").isalnum() and key.isascii()
        else json.dumps(key)
    )


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON escapes are TOML escapes, except for DEL and lone surrogates, which no setting holds.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, date | time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_key(k)} = {_value(v)}' for k, v in value.items())} }}"
    if value is None or isinstance(value, int | float):
        return repr(value)
    return _value(to_jsonable_python(value))  # such as a path, in a config made in Python


def _hide(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: HIDDEN if isinstance(entry, str) and SECRET_NAME.search(name) else _hide(entry)
            for name, entry in value.items()
        }
    return [_hide(entry) for entry in value] if isinstance(value, list) else hide_urls(value)
