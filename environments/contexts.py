"""What an environment does when the context is nearly full: nothing, a summary, or leaving out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from vf.runtime.errors import ConfigError, did_you_mean

LEFT_OUT = "[This result was left out to save space. Call the tool again if you need it.]"
INSTRUCTION = (
    "Your context is nearly full. Write a summary of what you have found and done so far, and of "
    "what is left to do. Only the task and this summary will be kept."
)
INTRODUCTION = "You have worked on this already. This is the summary that you wrote:"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nearly:
    """When a context is nearly full.

    Attributes:
        at: Share of the context, in (0, 1), beyond which room is made before the next answer. It
            is made earlier where an answer would not fit otherwise.
        tokens: Size of the context, where the model does not say, as one behind an API, or where
            less of it is to be used.
    """

    at: float = 0.75
    tokens: int | None = None

    def __post_init__(self) -> None:
        where = f"vf.{type(self).__name__}"
        if not 0.0 < self.at < 1.0:
            raise ConfigError(
                f"{where}: at = {self.at!r} must be a share of the context between 0 and 1, such "
                "as 0.75"
            )
        if self.tokens is not None and self.tokens < 1:
            raise ConfigError(f"{where}: tokens = {self.tokens!r} must be a positive number")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compact(_Nearly):
    """When the context is nearly full, the model writes a summary, and continues with it.

    It is asked for the summary in the conversation that it has had, and its tokens are trained as
    those of any answer. A new branch begins with the first messages and the summary.

    Attributes:
        summary_tokens: Tokens of a summary at most; by default those of an answer, and at most a
            quarter of the context.
        instruction: What asks for the summary.
        introduction: What precedes the summary where the model continues.

    Raises:
        ConfigError: If a setting is invalid; the message says what to write.
    """

    summary_tokens: int | None = None
    instruction: str = INSTRUCTION
    introduction: str = INTRODUCTION

    def __post_init__(self) -> None:
        super(Compact, self).__post_init__()
        if self.summary_tokens is not None and self.summary_tokens < 1:
            raise ConfigError(
                f"vf.Compact: summary_tokens = {self.summary_tokens!r} must be a positive number"
            )
        for name in ("instruction", "introduction"):
            if not str(getattr(self, name)).strip():
                raise ConfigError(f"vf.Compact: {name} is empty; leave it out for the default")


@dataclass(frozen=True, slots=True, kw_only=True)
class DropToolResults(_Nearly):
    """When the context is nearly full, old tool results are left out, and a new branch begins.

    What the model said in the earlier branch is context in the new one: it is trained once.

    Attributes:
        keep: The newest tool results that stay.
        note: What takes the place of a result.

    Raises:
        ConfigError: If a setting is invalid; the message says what to write.
    """

    keep: int = 3
    note: str = LEFT_OUT

    def __post_init__(self) -> None:
        super(DropToolResults, self).__post_init__()
        if self.keep < 0:
            raise ConfigError(f"vf.DropToolResults: keep = {self.keep!r} must not be negative")


Context: TypeAlias = Compact | DropToolResults
_BY_NAME: dict[str, type[Context] | None] = {
    "grow": None,
    "compact": Compact,
    "drop_tool_results": DropToolResults,
}


def context_of(setting: str | Context, where: str) -> Context | None:
    """Return what makes room in a context; None where it only grows.

    Args:
        setting: An environment's ``context``.
        where: The environment's name, for the error.

    Raises:
        ConfigError: If there is no such strategy; names the field and what can be written.
    """
    if isinstance(setting, Compact | DropToolResults):
        return setting
    if setting in _BY_NAME:
        kind = _BY_NAME[setting]
        return None if kind is None else kind()
    hint = did_you_mean(setting, _BY_NAME) if isinstance(setting, str) else ""
    names = ", ".join(f"'{name}'" for name in _BY_NAME)
    raise ConfigError(
        f"{where}: context = {setting!r}: write {names}, vf.Compact(...) or "
        f"vf.DropToolResults(...){hint}"
    )


def only_grows(setting: str | Context, where: str, why: str) -> None:
    """Refuse what makes room, in environments in which nothing can.

    Args:
        setting: An environment's ``context``.
        where: The environment's name, for the error.
        why: Nothing can, for the error.

    Raises:
        ConfigError: If the context is not ``"grow"``.
    """
    if setting != "grow":
        raise ConfigError(f"{where}: context = {setting!r}: {why}; leave it out")
