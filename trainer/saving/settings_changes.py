"""Whether a checkpoint fits the run that is to resume from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from vf.runtime.errors import ConfigError
from vf.trainer.settings.config import Config
from vf.trainer.settings.load_config import load_config

# These may differ between the parts of one run: they change no step.
_FREE = ("trainer.args.run_name", "trainer.args.output_dir")


def check_fits(
    checkpoint: Path,
    base_then: str,
    base_now: str,
    config: Config,
    changed: Collection[str],
    *,
    allow_changes: bool,
) -> list[str]:
    """Compare a checkpoint with the run that is to resume from it.

    Args:
        checkpoint: The checkpoint's folder.
        base_then: Fingerprint of the weights that were not trained then; empty if not known.
        base_now: The same of the model as it is loaded now.
        config: The settings now.
        changed: Dotted names of settings, or of whole tables, that may differ: `vf-rl --resume`
            names all, because it follows the run's config.toml.
        allow_changes: Resume whatever differs.

    Returns:
        A note for each difference.

    Raises:
        ConfigError: If something else differs; all of it is listed.
    """
    notes: list[str] = []
    refused: list[str] = []
    for name, text in _differences(checkpoint, config).items():
        intended = allow_changes or any(f"{name}.".startswith(f"{prefix}.") for prefix in changed)
        (notes if intended else refused).append(text)
    if refused:
        lines = "\n".join(f"  {text}" for text in refused)
        raise ConfigError(
            f"{checkpoint} was made with other settings:\n{lines}\nPut them back, name what you "
            "mean to change, or resume regardless with --allow-changes"
        )
    if base_then not in ("", base_now):
        text = f"the weights of model = {config.model!r} are not those that the run began with"
        if not allow_changes:
            raise ConfigError(f"{text}; put them back, or resume regardless with --allow-changes")
        notes.append(text)
    return notes


def _differences(checkpoint: Path, config: Config) -> dict[str, str]:
    path = checkpoint / "config.toml"
    if not path.exists():
        return {}
    try:
        saved, _ = load_config(path)
    except ConfigError as error:
        return {"trainer": f"its own config.toml can no longer be read: {error}"}
    then, now = _flat(saved.model_dump(mode="json")), _flat(config.model_dump(mode="json"))
    return {
        name: f"{name}: {then.get(name)!r} then, {now.get(name)!r} now"
        for name in sorted(then.keys() | now.keys())
        if then.get(name) != now.get(name) and name not in _FREE
    }


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one, with dotted names."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            value = {str(index): item for index, item in enumerate(value)}  # as --set names them
        if isinstance(value, dict):
            flat |= _flat(value, f"{name}.")
        else:
            flat[name] = value
    return flat
