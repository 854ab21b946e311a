"""What the page of a run shows besides its metrics: settings, alarms, and what costs time."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vf.runtime.errors import ConfigError
from vf.trainer.run.metrics import Metrics
from vf.trainer.settings.config import Config
from vf.trainer.settings.load_config import load_config
from vf.trainer.settings.write_config import to_toml, without_secrets
from vf.trainer.watching.alarms import ringing
from vf.trainer.watching.bottleneck import verdict


def about_run(config: Config, lines: Sequence[Metrics]) -> dict[str, Any]:
    """Return what the page shows of a run with these settings; secrets are hidden."""
    shown = without_secrets(config)
    return {
        "model": shown.model,
        "environment": ", ".join(env.id for env in shown.env),
        "max_steps": shown.args.max_steps,
        "settings": _flat(tomllib.loads(to_toml(shown))),
        "alarms": ringing(lines),
        "advice": verdict(lines, config).advice,
    }


class AboutFolders:
    """Tells the same of runs by their folders, from their `config.toml`."""

    def __init__(self) -> None:
        self._configs: dict[Path, tuple[float, Config | str]] = {}

    def __call__(self, folder: Path, lines: Sequence[Metrics]) -> Mapping[str, Any]:
        """Return what is known; of settings that cannot be read, what is wrong with them."""
        config = self._config(folder / "config.toml")
        if isinstance(config, Config):
            return about_run(config, lines)
        return {"problem": config, "alarms": ringing(lines)} if config else {}

    def _config(self, file: Path) -> Config | str:
        try:
            written = file.stat().st_mtime
        except OSError:
            return ""
        cached = self._configs.get(file)
        if cached is None or cached[0] != written:
            try:
                loaded: Config | str = load_config(file)[0]
            except ConfigError as error:  # of another version, or of something else
                loaded = f"its settings are not shown: {error}"
            cached = self._configs[file] = (written, loaded)
        return cached[1]


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{above}{name}"
        if isinstance(value, list) and any(isinstance(item, dict) for item in value):
            value = {str(number): item for number, item in enumerate(value)}
        flat |= _flat(value, f"{path}.") if isinstance(value, dict) and value else {path: value}
    return flat
