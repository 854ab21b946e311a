"""Questions of 1 to 3 hops about the corpus, each with one right answer under several names."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vf.environments.bundled.geo.facts import City, Country, World
from vf.environments.bundled.geo.phrases import Fact, Phrase, borders, once
from vf.environments.bundled.geo.spellings import capital_names, country_names
from vf.rubrics.outcomes.text import normalize_answer

_OF_COUNTRY = {
    "capital": ["What is the capital of {}?", "Which city is the capital of {}?"],
    "currency": [
        "What is the three-letter code of the currency of {}?",
        "Which currency is used in {}? Give its three-letter code.",
    ],
    "phone": ["What is the international calling code of {}?"],
    "domain": ["What is the top-level internet domain of {}?"],
    "population": ["What is the population of {}?", "How many people live in {}?"],
    "area": [
        "How many square kilometres does {} cover?",
        "In square kilometres, what is the area of {}?",
    ],
}
_OF_CITY = {
    "population": ["What is the population of {}?", "How many people live in {}?"],
    "timezone": ["What is the time zone of {}?", "Which time zone do clocks in {} follow?"],
}
_NAME = ["Name {}.", "What is the name of {}?"]


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        text: What the model reads.
        answers: The right answer under every name that counts, the corpus' own first.
        query: Its meaning, as nested tuples: see :class:`~.phrases.Phrase`.
        hops: Reasoning steps, 1 to 3.
        facts: The facts that answer it.
        documents: Ids of the passages that tell them, in the order of need.
    """

    text: str
    answers: tuple[str, ...]
    query: tuple[Any, ...]
    hops: int
    facts: tuple[Fact, ...]
    documents: tuple[str, ...]

    @property
    def gives_itself_away(self) -> bool:
        """Whether the text holds the answer, under any of its names."""
        text = f" {normalize_answer(self.text)} "
        return any(f" {normalize_answer(answer)} " in text for answer in self.answers)


def about_country(world: World, rng: random.Random, country: Phrase[Country]) -> Question | None:
    """Ask for something of a country; None if GeoNames does not know it."""
    return _about(world, rng, country, _OF_COUNTRY)


def about_city(world: World, rng: random.Random, city: Phrase[City]) -> Question | None:
    """Ask for something of a city; None if GeoNames does not know it."""
    return _about(world, rng, city, _OF_CITY)


def its_name(rng: random.Random, country: Phrase[Country]) -> Question:
    """Ask which country a phrase points at; a hop, be the phrase without any."""
    return Question(
        rng.choice(_NAME).format(country.text),
        country_names(country.target),
        ("name", country.query),
        max(1, country.hops),
        country.facts,
        country.documents,
    )


def count_neighbours(world: World, rng: random.Random, country: Phrase[Country]) -> Question | None:
    """Ask how many neighbours lie on a continent; None unless some do and some do not."""
    neighbours = [world.countries[code] for code in country.target.neighbours]
    continents = sorted({neighbour.continent for neighbour in neighbours})
    if len(continents) < 2:
        return None
    continent = rng.choice(continents)
    number = sum(neighbour.continent == continent for neighbour in neighbours)
    facts = [(neighbour.id, "continent", neighbour.continent) for neighbour in neighbours]
    return Question(
        f"How many of the countries that border {country.text} belong to {continent}?",
        (str(number),),
        ("count", continent, country.query),
        country.hops + 2,
        once([*country.facts, *borders(country.target), *facts]),
        once([*country.documents, country.target.id, *(n.id for n in neighbours)]),
    )


def _about(
    world: World,
    rng: random.Random,
    phrase: Phrase[Any],
    wordings: Mapping[str, Sequence[str]],
) -> Question | None:
    relation = rng.choice(list(wordings))
    entity: Country | City = phrase.target
    value = getattr(entity, relation)
    if not value:
        return None
    answers: tuple[str, ...] = (f"{value:,}" if isinstance(value, int) else value,)
    if isinstance(entity, Country) and relation == "capital":
        answers = capital_names(world, entity)
    elif relation == "timezone":
        answers = (value, value.replace("/", " ").replace("_", " "))
    return Question(
        rng.choice(wordings[relation]).format(phrase.text),
        answers,
        (relation, phrase.query),
        phrase.hops + 1,
        once([*phrase.facts, (entity.id, relation, str(value))]),
        once([*phrase.documents, entity.id]),
    )
