"""reasoning-gym's datasets, one problem at a time."""

from __future__ import annotations

import dataclasses
import traceback
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from vf.bridges.seeded_games import GlobalRandom
from vf.runtime.errors import ConfigError, did_you_mean
from vf.runtime.extras import load

_REMEMBERED = 512  # problems
_OURS = {"seed": "seed", "size": "num_train and num_eval"}


class Problems:
    """A dataset of reasoning-gym, whose problems are made on request.

    Args:
        name: The dataset.
        config: Fields of its configuration.
        level: The level of its curriculum, or None.
        seed: Seed of the first problem.
        size: The number of problems.

    Attributes:
        dataset_class: Its class in reasoning-gym.
        config: Its whole configuration.

    Raises:
        ConfigError: If there is no such dataset, field or level, or a value does not fit.
    """

    def __init__(
        self, name: str, config: Mapping[str, Any], level: int | None, *, seed: int, size: int
    ) -> None:
        self.name, self.seed, self.size = name, seed, size
        self._remembered: OrderedDict[int, dict[str, Any]] = OrderedDict()
        self.dataset_class, config_class = _find(name)
        fields = {field.name for field in dataclasses.fields(config_class)}
        given = _checked(name, config, fields)
        sized = {key: value for key, value in (("seed", seed), ("size", size)) if key in fields}
        try:
            with GlobalRandom(seed).in_place():
                self.config = _configured(name, config_class, level, given | sized)
                self.dataset = self.dataset_class(config=self.config)
        except Exception as error:
            raise ConfigError(f"reasoning-gym: {name}: config: {_error_text(error)}") from error

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a problem, as reasoning-gym makes it: question, answer and metadata.

        Raises:
            ConfigError: If it cannot be made.
        """
        if index not in self._remembered:
            try:
                with GlobalRandom(self.seed + index).in_place():
                    entry = self.dataset[index]
            except Exception as error:
                raise ConfigError(
                    f"reasoning-gym: {self.name} cannot make problem number {index + 1} of "
                    f"{self.size}: {_error_text(error)}; ask for fewer, or fix its config"
                ) from error
            self._remembered[index] = entry
            if len(self._remembered) > _REMEMBERED:
                self._remembered.popitem(last=False)
        return self._remembered[index]


def _find(name: str) -> tuple[type, type]:
    datasets: dict[str, tuple[type, type]] = load("reasoning_gym.factory", "reasoning-gym").DATASETS
    if name not in datasets:
        raise ConfigError(
            f"reasoning-gym: there is no dataset {name!r}.{did_you_mean(name, datasets)} "
            f"It has: {', '.join(sorted(datasets))}"
        )
    return datasets[name]


def _checked(name: str, config: Mapping[str, Any], fields: set[str]) -> dict[str, Any]:
    for key in config:
        if key in _OURS:
            raise ConfigError(
                f"reasoning-gym: {name}: config: {key!r} is set by {_OURS[key]} of the "
                "environment, so that no problem is in both splits; leave it out"
            )
        if key not in fields:
            takes = ", ".join(sorted(fields - _OURS.keys()))
            raise ConfigError(
                f"reasoning-gym: {name}: config has no {key!r}.{did_you_mean(key, fields)} "
                f"It takes: {takes}"
            )
    if name != "composite":
        return dict(config)
    make_spec = load("reasoning_gym.composite", "reasoning-gym").DatasetSpec
    specs = []
    for part in config.get("datasets") or ():
        if not isinstance(part, Mapping) or "name" not in part:
            raise ConfigError(
                "reasoning-gym: composite: each of config's datasets is a table of 'name', and, if "
                f"you like, 'weight' and 'config'; got {part!r}"
            )
        unknown = next((key for key in part if key not in ("name", "weight", "config")), None)
        if unknown is not None:
            raise ConfigError(f"reasoning-gym: composite: datasets: there is no {unknown!r}")
        inner = {field.name for field in dataclasses.fields(_find(part["name"])[1])}
        inside = _checked(part["name"], part.get("config") or {}, inner)
        specs.append(make_spec(part["name"], part.get("weight", 1.0), inside))
    return {**config, "datasets": specs}


def _configured(name: str, config_class: type, level: int | None, given: dict[str, Any]) -> Any:
    """Return the configuration, with that of a level beneath what is given."""
    if level is None:
        return config_class(**given)
    factory = load("reasoning_gym.factory", "reasoning-gym")
    if not factory.has_curriculum(name):
        raise ValueError(f"it has no curriculum, so level must be left out, got {level}")
    curriculum = factory.create_curriculum(name)
    most = (
        max((len(attribute.levels) for attribute in curriculum.attributes.values()), default=1) - 1
    )
    if not 0 <= level <= most:
        raise ValueError(f"level must be 0 to {most}, got {level}")
    curriculum.set_global_level(level)
    return dataclasses.replace(curriculum.generate_configuration(), **given)


def _error_text(error: Exception) -> str:
    """Return an error's text, with its line of code if the text does not name the field."""
    if str(error) and isinstance(error, AssertionError | ValueError):
        return str(error)
    line = traceback.extract_tb(error.__traceback__)[-1].line
    return f"{type(error).__name__}: {error} (at `{line}`)"
