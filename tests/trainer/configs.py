"""A run's config from the tables that a test is about."""

from __future__ import annotations

from typing import Any

from vf.trainer.settings.config import Config
from vf.trainer.settings.load_config import parse_config


def configured(args: dict[str, Any] | None = None, **tables: Any) -> Config:
    """Parse the TOML of a run of the tiny model in the calculator.

    Args:
        args: ``[trainer.args]``.
        tables: The other tables, and ``trainer`` without its arguments; in place of the usual ones.

    Raises:
        ConfigError: As for :func:`parse_config`.
    """
    trainer = tables.pop("trainer", {})
    if args is not None:
        trainer = {**trainer, "args": args}
    raw = {"model": "tiny", "env": {"id": "calculator"}, "trainer": trainer, **tables}
    return parse_config(raw)[0]
