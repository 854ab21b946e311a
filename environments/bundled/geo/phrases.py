"""Ways to point at a country or a city without naming it: what questions are made of.

A phrase can stand inside another, "the capital of [the most populous country that borders
[Chad]]", and every layer is a hop. Each keeps its meaning as nested lists, for a check that shares
no code with the generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from vf.environments.bundled.geo.facts import City, Country, World
from vf.environments.bundled.geo.spellings import in_text

Place = TypeVar("Place", Country, City)
Fact = tuple[str, str, str]  # passage id, relation, value
MOST_NEIGHBOURS = 3  # of a country whose neighbours must be compared: each is one more passage


@dataclass(frozen=True, slots=True)
class Phrase(Generic[Place]):
    """A noun phrase for one country or city.

    Attributes:
        text: As it appears in a question.
        query: Its meaning: an operator, then names or further queries.
        target: What it points at.
        hops: Reasoning steps to find the target; 0 if its own passage is enough.
        facts: What must be known to find it. A border is one fact, whichever side tells it.
        documents: Ids of the passages that tell these facts, in the order of need.
    """

    text: str
    query: tuple[Any, ...]
    target: Place
    hops: int = 0
    facts: tuple[Fact, ...] = ()
    documents: tuple[str, ...] = ()


def country_named(country: Country) -> Phrase[Country]:
    """France."""
    return Phrase(in_text(country), ("country", country.name), country)


def city_named(city: City) -> Phrase[City]:
    """The city of Lyon, whose name must be the only one of its kind."""
    return Phrase(f"the city of {city.name}", ("city", city.name), city)


def country_of(world: World, city: Phrase[City]) -> Phrase[Country]:
    """The country where the city of Lyon lies."""
    country = world.countries[city.target.country]
    return _next(
        f"the country where {city.text} lies",
        ("country-of", city.query),
        country,
        [city],
        [(city.target.id, "country", country.id)],
        [city.target.id],
    )


def country_by(country: Country, relation: str, value: str, text: str) -> Phrase[Country]:
    """The country with the calling code +261: its passage is found by what it tells, not its name.

    No hop of its own: it is the passage that would be needed anyhow.
    """
    fact = (country.id, relation, value)
    return Phrase(text, (relation, value), country, 0, (fact,), (country.id,))


def capital_of(world: World, country: Phrase[Country]) -> Phrase[City]:
    """The capital of France, as a city. The country must have it among the cities."""
    city = world.cities[world.capitals[country.target.code]]
    return _next(
        f"the capital of {country.text}",
        ("capital-of", country.query),
        city,
        [country],
        [(country.target.id, "capital", country.target.capital)],
        [country.target.id],
    )


def larger(first: Phrase[Place], second: Phrase[Place]) -> Phrase[Place] | None:
    """The more populous one of two; None if they are equal."""
    one, two = first.target, second.target
    if one.population == two.population:
        return None
    return _next(
        f"the more populous of {first.text} and {second.text}",
        ("larger", first.query, second.query),
        max(one, two, key=lambda entity: entity.population),
        [first, second],
        [_population(one), _population(two)],
        [one.id, two.id],
    )


def largest_neighbour(world: World, country: Phrase[Country]) -> Phrase[Country] | None:
    """The most populous neighbour; None unless there are 2 or 3, and one of them is first."""
    neighbours = [world.countries[code] for code in country.target.neighbours]
    if not 2 <= len(neighbours) <= MOST_NEIGHBOURS:
        return None
    ranked = sorted(neighbours, key=lambda neighbour: -neighbour.population)
    if ranked[0].population == ranked[1].population:
        return None
    return _next(
        f"the most populous country that borders {country.text}",
        ("largest-neighbour", country.query),
        ranked[0],
        [country],
        [*borders(country.target), *map(_population, neighbours)],
        [country.target.id, *(neighbour.id for neighbour in neighbours)],
    )


def between(world: World, first: Country, second: Country) -> Phrase[Country] | None:
    """The only country that borders both; None if there are more, or none."""
    both = set(first.neighbours) & set(second.neighbours)
    if len(both) != 1:
        return None
    one, two = country_named(first), country_named(second)
    return _next(
        f"the only country that borders both {one.text} and {two.text}",
        ("between", one.query, two.query),
        world.countries[both.pop()],
        [one, two],
        [*borders(first), *borders(second)],
        [first.id, second.id],
    )


def countries_in(facts: Sequence[Fact], world: World) -> set[str]:
    """Return the codes of all countries that facts are about; a city counts for its country."""
    codes = set()
    for doc_id, relation, value in facts:
        for name in (doc_id, value) if relation == "borders" else (doc_id,):
            entity = world.place(name)
            codes.add(entity.country if isinstance(entity, City) else entity.code)
    return codes


def _next(
    text: str,
    query: tuple[Any, ...],
    target: Place,
    inner: Sequence[Phrase[Any]],
    facts: Sequence[Fact],
    documents: Sequence[str],
) -> Phrase[Place]:
    """Return a phrase one hop further than those inside it, with what they need and it adds."""
    return Phrase(
        text,
        query,
        target,
        1 + max((phrase.hops for phrase in inner), default=0),
        once([*(fact for phrase in inner for fact in phrase.facts), *facts]),
        once([*(name for phrase in inner for name in phrase.documents), *documents]),
    )


def once(values: Sequence[Any]) -> tuple[Any, ...]:
    """Return the values in their order, each once."""
    return tuple(dict.fromkeys(values))


def _population(entity: Country | City) -> Fact:
    return (entity.id, "population", str(entity.population))


def borders(country: Country) -> list[Fact]:
    """Return which countries a country borders, as facts that either side would tell alike."""
    pairs = [sorted((country.id, f"country-{code.lower()}")) for code in country.neighbours]
    return [(one, "borders", two) for one, two in pairs]
