"""The corpus: one passage per country and per city, in varied words, the same every time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from vf.environments.bundled.geo.facts import City, Country, World, fold
from vf.environments.bundled.geo.spellings import in_text
from vf.runtime.seeding import derive_seed
from vf.tools.search.contract import Document

# A country's name is in most sentences of its own passage: a search for it shall find that one, and
# not the cities that lie there.
_COUNTRY_BEGINS = [
    "{Name} belongs to the continent of {continent}. The capital of {name} is {capital}.",
    "{capital} is the capital of {name}, and {name} is counted as part of {continent}.",
    "On the continent of {continent} lies {name}. It is governed from its capital {capital}.",
]
_COUNTRY = {
    "population": [
        "Some {population:,} people live in {name}.",
        "{Name} has a population of {population:,}.",
        "The number of inhabitants of {name} is {population:,}.",
    ],
    "area": [
        "The area of {name} is {area:,} square kilometres.",
        "{Name} covers {area:,} square kilometres.",
        "The territory of {name} measures {area:,} square kilometres.",
    ],
    "currency": [
        "In {name} one pays in {currency_name} (ISO code {currency}).",
        "The currency of {name} is the {currency_name}, {currency} for short.",
        "Prices in {name} are in {currency_name}; the currency's code is {currency}.",
    ],
    "phone": [
        "Telephone numbers begin with the calling code +{phone}.",
        "Its international calling code is +{phone}.",
    ],
    "domain": [
        "Web addresses end in the internet domain {domain}.",
        "The top-level internet domain is {domain}.",
    ],
}
_BORDERS = [
    "{Name} borders {neighbours}.",
    "{Name} shares borders with {neighbours}.",
    "By land {name} meets {neighbours}.",
]
_NO_BORDERS = ["It shares no land border with any country.", "It has no neighbour by land."]
_CITY_BEGINS = [
    "{city} is a {role} in {country}.",
    "The {role} of {city} lies in {country}.",
    "{city}, a {role}, is found in {country}.",
]
_CITY = [
    [
        "Some {population:,} people live there.",
        "It has {population:,} inhabitants.",
        "Its population is {population:,}.",
    ],
    ["It lies at {place}.", "Its position is {place}."],
    ["Its time zone is {timezone}.", "Clocks there follow {timezone} time."],
]
FUNCTION_WORDS = frozenset(
    word
    for wordings in [_COUNTRY_BEGINS, *_COUNTRY.values(), _BORDERS, _CITY_BEGINS, *_CITY]
    for wording in wordings
    for word in wording.lower().split()
)  # a search for one of these finds everything, and so nothing


def documents(world: World) -> Iterator[Document]:
    """Yield the passages of all countries, then of all cities.

    A passage tells each fact of its own country or city once, and none of any other, except that
    a country names its capital and its neighbours, and a city its country. So a question of
    several hops needs several passages.
    """
    for country in world.countries.values():
        yield Document(country.id, country.name, _of_country(world, country))
    for city in world.cities.values():
        yield Document(city.id, city.name, _of_city(world, city))


def _of_country(world: World, country: Country) -> str:
    rng = random.Random(derive_seed("geo-qa", "passage", country.id))
    neighbours = [in_text(world.countries[code]) for code in country.neighbours]
    name = in_text(country)
    values = {
        "name": name,
        "Name": name[0].upper() + name[1:],
        "continent": country.continent,
        "capital": country.capital,
        "currency_name": country.currency_name,
        "neighbours": _listed(rng, neighbours),
        **{relation: getattr(country, relation) for relation in _COUNTRY},
    }
    facts = [wordings for relation, wordings in _COUNTRY.items() if values[relation]]
    rest = [*facts, _BORDERS if neighbours else _NO_BORDERS]
    return _passage(rng, _COUNTRY_BEGINS, rest, values)


def _of_city(world: World, city: City) -> str:
    rng = random.Random(derive_seed("geo-qa", "passage", city.id))
    country = world.countries[city.country]
    capital = world.capitals.get(city.country) == city.number
    coordinates = f"{_degrees(city.latitude, 'NS')}, {_degrees(city.longitude, 'EW')}"
    values = {
        "city": city.name,
        "role": "capital city" if capital else "city",
        "country": in_text(country),
        "population": city.population,
        "place": coordinates,
        "timezone": city.timezone,
        "spelling": country.capital,
    }
    begins = _CITY_BEGINS
    if capital and fold(country.capital) != fold(city.name):
        begins = [f"{begin} Its name is also written {{spelling}}." for begin in begins]
    return _passage(rng, begins, _CITY, values)


def _passage(
    rng: random.Random,
    begins: Sequence[str],
    rest: Sequence[Sequence[str]],
    values: Mapping[str, object],
) -> str:
    """Return one of the beginnings, then the rest in any order, one wording of each."""
    sentences = [rng.choice(wordings) for wordings in rng.sample(rest, len(rest))]
    return " ".join([rng.choice(begins), *sentences]).format_map(values)


def _listed(rng: random.Random, names: Sequence[str]) -> str:
    mixed = rng.sample(names, len(names))
    return " and ".join([", ".join(mixed[:-1]), mixed[-1]] if len(mixed) > 1 else mixed)


def _degrees(value: float, signs: str) -> str:
    return f"{abs(value):.2f}° {signs[value < 0]}"
