"""``[env]`` and ``[[env]]``: where the model acts, and what differs there. Loads no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator

from vf.environments.registry import label
from vf.inference.settings import (
    MinP,
    Positive,
    PositiveTemperature,
    Strict,
    Temperature,
    TopK,
    TopP,
)
from vf.trainer.settings.loop_args import Count, Outcome
from vf.trainer.settings.loss_args import AdvantageKind
from vf.trainer.settings.shared import Share, SharedArgs

Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class EnvConfig(Strict):
    """``[env]``, or one of several ``[[env]]``: an environment, its arguments, and its settings.

    A key that is not set here has the value of the same key in ``[trainer.args]``.
    """

    id: str
    """Name of a registered or installed environment, a file (`my_env.py`, or `my_env.py:MyEnv`), or
    `package.module:MyEnv`. A relative path begins at the TOML's folder."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of its constructor."""
    name: str | None = None
    """Name in metrics and messages, where there are several; by default the id, of a file without
    its folder, and with a number where two would be alike."""
    ratio: Weight | None = None
    """Its share of a step's rollouts, relative to the others' `ratio`. By default all are equal."""
    token_ratio: Weight | None = None
    """Instead of `ratio`: its share of the tokens that carry loss, relative to the others'."""
    curriculum: str = "uniform"
    """Which tasks come next: `uniform`, `success_rate`, `stages`, `league`, or your own, as
    `package.module:Class`, `file.py:Class` or the name of an entry point."""
    curriculum_args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the curriculum."""

    max_tokens: Positive | None = None
    """Tokens sampled in one turn at most."""
    max_prompt_len: Positive | None = None
    """Tokens in a task's first prompt at most."""
    max_seq_len: Positive | None = None
    """Maximum tokens in one context; at most the run's."""
    temperature: PositiveTemperature | None = None
    """Sampling temperature."""
    top_p: TopP | None = None
    """Nucleus mass."""
    top_k: TopK | None = None
    """Likeliest tokens kept; 0 keeps all."""
    min_p: MinP | None = None
    """Share of the likeliest token's probability below which a token is dropped."""

    advantage: AdvantageKind | None = None
    """How rewards are compared within a group, and normalised."""
    min_group_size: Annotated[int, Field(ge=2)] | None = None
    """Scored rollouts below which a group is not trained on."""
    mask_truncated: bool | None = None
    """Train no token of a rollout that a limit ended or whose answer was cut."""
    overlong_buffer: Positive | None = None
    """Tokens before max_tokens in which a turn begins to cost reward."""
    overlong_penalty: Annotated[float, Field(gt=0)] | None = None
    """`overlong_buffer`: what a turn of max_tokens costs."""
    credit_discount: Share | None = None
    """`credit = turn`: what a reward is worth one turn earlier."""
    rest_easy: Count | None = None
    """Epochs that a task rests after its group's outcomes were all high."""
    rest_hard: Count | None = None
    """Epochs that a task rests after its group's outcomes were all low."""
    easy_outcome: Outcome | None = None
    """A group is easy if each of its outcomes is at least this."""
    hard_outcome: Outcome | None = None
    """A group is hard if each of its outcomes is at most this."""

    eval_examples: Positive | None = None
    """Held-out tasks in an evaluation."""
    eval_rollouts_per_example: Positive | None = None
    """Rollouts of one held-out task in an evaluation."""
    eval_temperature: Temperature | None = None
    """Sampling temperature of evaluations; 0 is greedy."""
    eval_max_tokens: Positive | None = None
    """Tokens sampled in one turn of an evaluation at most."""

    @field_validator("name")
    @classmethod
    def _is_name(cls, name: str | None) -> str | None:
        if name is not None and (not name.strip() or not name.isprintable()):
            raise ValueError(f"{name!r} must be a line of text")
        return name

    @property
    def own_args(self) -> dict[str, Any]:
        """The settings of ``[trainer.args]`` that are other ones here."""
        return {name: value for name in OWN if (value := getattr(self, name)) is not None}


_HERE = ("id", "args", "name", "ratio", "token_ratio", "curriculum", "curriculum_args")
OWN = tuple(name for name in EnvConfig.model_fields if name not in _HERE)


def listed(envs: Any) -> Any:
    """Return a single ``[env]`` as the list of one that it is.

    Raises:
        ValueError: If it is a text.
    """
    if isinstance(envs, str):
        raise ValueError(f'it is a table, not {envs!r}: [env], and in it id = "{envs}"')
    return [envs] if isinstance(envs, dict | EnvConfig) else envs


def names_of(envs: Sequence[EnvConfig]) -> list[str]:
    """Return the environments' names, all different: those that were given, and made ones."""
    taken = {env.name for env in envs if env.name is not None}
    names: list[str] = []
    for env in envs:
        name, number = env.name or label(env.id), 1
        while env.name is None and name in taken:
            number += 1
            name = f"{label(env.id)}-{number}"
        taken.add(name)
        names.append(name)
    return names


def tables_of(envs: Sequence[EnvConfig]) -> list[str]:
    """Return the environments' tables, as ``--set`` and messages name them."""
    return [f"env.{index}" for index in range(len(envs))] if len(envs) > 1 else ["env"]


def check_mixture(
    envs: Sequence[EnvConfig], args: SharedArgs, check: Callable[[dict[str, Any]], object]
) -> None:
    """Refuse environments that cannot share a run.

    Args:
        envs: The environments.
        args: ``[trainer.args]``.
        check: Raises ValidationError if such settings contradict each other.

    Raises:
        ValueError: If there is none, two have one name, their ratios are of different kinds, or
            one's settings do not fit those of the run.
    """
    if not envs:
        raise ValueError("env: there is no environment; write an [env] table with an id")
    _check_names(envs)
    _check_ratios(envs)
    for table, env in zip(tables_of(envs), envs, strict=True):
        if env.max_seq_len is not None and env.max_seq_len > args.max_seq_len:
            raise ValueError(
                f"{table}.max_seq_len = {env.max_seq_len} is more than trainer.args.max_seq_len = "
                f"{args.max_seq_len}, which is trained; lower the first"
            )
        try:
            check(args.model_dump() | env.own_args)
        except ValidationError as error:
            message = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise ValueError(f"{table}: {message}") from None


def _check_names(envs: Sequence[EnvConfig]) -> None:
    counts = Counter(env.name for env in envs if env.name is not None)
    for name in [name for name, count in counts.items() if count > 1]:
        first, second = [index for index, env in enumerate(envs) if env.name == name][:2]
        raise ValueError(
            f"env.{first}.name and env.{second}.name are both {name!r}; give each another name"
        )


def _check_ratios(envs: Sequence[EnvConfig]) -> None:
    if len(envs) == 1:
        return
    by_kind = {
        kind: [index for index, env in enumerate(envs) if getattr(env, kind) is not None]
        for kind in ("ratio", "token_ratio")
    }
    rollouts, tokens = by_kind["ratio"], by_kind["token_ratio"]
    if rollouts and tokens:
        raise ValueError(
            f"env.{rollouts[0]}.ratio is a share of rollouts, and env.{tokens[0]}.token_ratio one "
            "of tokens: set one of the two in all environments"
        )
    for kind, indices in by_kind.items():
        missing = sorted(set(range(len(envs))) - set(indices))
        if indices and missing:
            raise ValueError(
                f"env.{missing[0]}.{kind}: missing, and env.{indices[0]}.{kind} is set; set it in "
                "all environments, or in none"
            )
