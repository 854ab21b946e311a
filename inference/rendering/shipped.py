"""Chat templates that ship with vf-rl, for models that have none or one that hides their tools."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from vf.inference.model_files import TINY, resolve_model
from vf.runtime.errors import ConfigError, did_you_mean

FOLDER = Path(__file__).parent / "templates"


# By name, with the tokens that the model's vocabulary must hold for it.
SHIPPED: dict[str, tuple[str, ...]] = {"chatml": ("<|im_start|>", "<|im_end|>"), "plain": ()}


def find_template(name: str) -> Path:
    """Return the file of a chat template.

    Args:
        name: One of :data:`SHIPPED`, or a file.

    Raises:
        ConfigError: If there is no such template.
    """
    if name in SHIPPED:
        return FOLDER / f"{name}.jinja"
    path = Path(name).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"chat_template = {name!r} is neither a file nor one that ships with vf-rl "
            f"({', '.join(SHIPPED)}).{did_you_mean(name, SHIPPED)}"
        )
    return path


def load_template(name: str, tokenizer: Any) -> str:
    """Return the text of a chat template.

    Args:
        name: One of :data:`SHIPPED`, or a file.
        tokenizer: The model's tokenizer, a ``PreTrainedTokenizerBase``.

    Raises:
        ConfigError: If there is no such template, it cannot be read, or the model's vocabulary
            lacks the tokens that it is made of.
    """
    path = find_template(name)
    if name in SHIPPED:
        vocabulary = tokenizer.get_vocab()
        if missing := [token for token in SHIPPED[name] if token not in vocabulary]:
            raise ConfigError(
                f"chat_template = {name!r}: the vocabulary of {tokenizer.name_or_path!r} has no "
                f'{missing[0]}, which this template needs; use "plain", which needs no tokens'
            )
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat_template = {name!r}: cannot read it: {error}") from error


def is_shipped(template: str) -> bool:
    """Return whether a chat template is, letter by letter, one that ships with vf-rl."""
    return template in _texts()


@cache
def _texts() -> frozenset[str]:
    files = [*FOLDER.glob("*.jinja"), Path(resolve_model(TINY), "chat_template.jinja")]
    return frozenset(file.read_text(encoding="utf-8") for file in files)
