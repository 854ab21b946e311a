"""Drawing questions at random, those of the eval split about countries that train never names."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from vf.environments.bundled.geo.facts import City, Country, World, fold
from vf.environments.bundled.geo.passages import FUNCTION_WORDS
from vf.environments.bundled.geo.phrases import (
    Phrase,
    Place,
    between,
    capital_of,
    city_named,
    countries_in,
    country_by,
    country_named,
    country_of,
    larger,
    largest_neighbour,
)
from vf.environments.bundled.geo.questions import (
    Question,
    about_city,
    about_country,
    count_neighbours,
    its_name,
)
from vf.environments.environment import Split
from vf.runtime.errors import ConfigError
from vf.runtime.seeding import derive_seed

MOST_HOPS = 3
MOST_DOCUMENTS = 5  # that one question may need
_DRAWS_PER_QUESTION = 400  # after so many, there are no more different questions to draw
_KINDS = {"country": 5.0, "city": 3.0, "name": 2.0, "count": 1.5}
_NAMED = 0.7  # share of the countries that are named where a hop need not be made
_BY_VALUE = {
    "capital": "the country whose capital is {}",
    "phone": "the country with the calling code +{}",
    "domain": "the country with the internet domain {}",
}


class Questioner:
    """Draws questions of one split: all their facts are about countries of that split.

    Args:
        world: The facts.
        split: The split to draw for.
    """

    def __init__(self, world: World, split: Split) -> None:
        self.world = world
        sides = split_by_country(world)
        self.inside = {code for code, side in sides.items() if side == split}
        self.countries = [world.countries[code] for code in sorted(self.inside)]
        self.cities: dict[str, list[City]] = {}
        for city in world.cities.values():
            if city.country in self.inside and fold(city.name) in world.unique_names:
                self.cities.setdefault(city.country, []).append(city)
        # Those with all neighbours on this side: only of them may it be asked who borders them.
        self.closed = [c for c in self.countries if c.neighbours and self.inside >= {*c.neighbours}]
        self.bearers = {
            relation: Counter(getattr(c, relation) for c in world.countries.values())
            for relation in _BY_VALUE
        }

    def questions(self, count: int, hops: tuple[int, int], seed: int) -> Iterator[Question]:
        """Yield different questions, as many of one number of hops as of another.

        Args:
            count: The number of questions.
            hops: Least and most hops, within 1 to 3.
            seed: The same seed gives the same questions.

        Raises:
            ConfigError: If there are not so many.
        """
        rng = random.Random(seed)
        seen: set[str] = set()
        for number in range(count):
            hop_count = hops[0] + number % (hops[1] - hops[0] + 1)
            for _ in range(_DRAWS_PER_QUESTION):
                question = self.draw(rng, hop_count)
                if question is not None and question.text not in seen:
                    seen.add(question.text)
                    yield question
                    break
            else:
                raise ConfigError(
                    f"geo-qa: found only {number} different questions, not {count}; ask for "
                    "fewer, or take more cities into the corpus"
                )

    def draw(self, rng: random.Random, hops: int) -> Question | None:
        """Draw a question of so many hops; None where what was drawn makes no good question."""
        question = self._any(rng, hops)
        if (
            question is None
            or question.gives_itself_away
            or len(question.documents) > MOST_DOCUMENTS
            or not countries_in(question.facts, self.world) <= self.inside
        ):
            return None
        return question

    def _any(self, rng: random.Random, hops: int) -> Question | None:
        (kind,) = rng.choices(list(_KINDS), list(_KINDS.values()))
        if kind == "city":
            city = self._city(rng, hops - 1)
            return None if city is None else about_city(self.world, rng, city)
        before = {"country": hops - 1, "name": hops, "count": hops - 2}[kind]
        if kind == "name" and hops == 1:
            before = rng.randrange(2)  # the name alone is a question, if a value stands for it
        if kind == "count" and before == 0:
            return count_neighbours(self.world, rng, country_named(rng.choice(self.closed)))
        country = self._country(rng, before) if before >= 0 else None
        if country is None:
            return None
        if kind == "name":
            return its_name(rng, country)
        if kind == "count":
            return count_neighbours(self.world, rng, country)
        return about_country(self.world, rng, country)

    def _country(self, rng: random.Random, hops: int) -> Phrase[Country] | None:
        """Draw a phrase of so many hops for a country; None where it does not point at one."""
        if hops == 0:
            named = rng.random() < _NAMED
            return country_named(rng.choice(self.countries)) if named else self._by_value(rng)
        ways: list[Callable[[random.Random, int], Phrase[Country] | None]] = [
            self._by_its_city,
            self._by_its_neighbour,
            self._larger_country,
        ]
        if hops == 1:
            ways.append(self._between)
        return rng.choice(ways)(rng, hops - 1)

    def _by_its_city(self, rng: random.Random, hops: int) -> Phrase[Country] | None:
        city = self._city(rng, hops)
        # "The country where the capital of France lies" would be no hop at all.
        if city is None or city.query[0] == "capital-of":
            return None
        return country_of(self.world, city)

    def _by_its_neighbour(self, rng: random.Random, hops: int) -> Phrase[Country] | None:
        country = self._country(rng, hops) if hops else country_named(rng.choice(self.closed))
        return None if country is None else largest_neighbour(self.world, country)

    def _larger_country(self, rng: random.Random, hops: int) -> Phrase[Country] | None:
        return _larger(self._country(rng, hops), self._country(rng, hops))

    def _by_value(self, rng: random.Random) -> Phrase[Country] | None:
        country, relation = rng.choice(self.countries), rng.choice(list(_BY_VALUE))
        value = getattr(country, relation)
        if not value or self.bearers[relation][value] > 1 or value[1:] in FUNCTION_WORDS:
            return None
        return country_by(country, relation, value, _BY_VALUE[relation].format(value))

    def _between(self, rng: random.Random, _: int) -> Phrase[Country] | None:
        one = rng.choice(self.closed)
        over_one = {
            second for first in one.neighbours for second in self.world.countries[first].neighbours
        }
        two = self.world.countries[rng.choice(sorted(over_one))]
        return None if one is two else between(self.world, one, two)

    def _city(self, rng: random.Random, hops: int) -> Phrase[City] | None:
        """Draw a phrase of so many hops for a city; None where it does not point at one."""
        if hops == 0:
            # Countries first, or every third city would be Chinese and easy to guess things of.
            return city_named(rng.choice(self.cities[rng.choice(list(self.cities))]))
        if rng.random() < 0.4:
            return _larger(self._city(rng, hops - 1), self._city(rng, hops - 1))
        country = self._country(rng, hops - 1)
        if country is None or country.target.code not in self.world.capitals:
            return None
        return capital_of(self.world, country)


def _larger(one: Phrase[Place] | None, two: Phrase[Place] | None) -> Phrase[Place] | None:
    """Compare two; not what was compared before, for nobody could read that."""
    if one is None or two is None or "larger" in (one.query[0], two.query[0]):
        return None
    return larger(one, two)


_REGION = 12  # countries in one region that is held out as a whole
_SHARE = 4  # one country in four is held out


def split_by_country(world: World) -> Mapping[str, Split]:
    """Return the split of every country's code; the same whatever the seed of the questions.

    Whole regions are held out, grown breadth first from neighbour to neighbour, so that questions
    about neighbours can be asked on either side: those whose every neighbour is on that side.
    Countries without land borders are held out one by one.
    """
    ranked = sorted(world.countries, key=lambda code: derive_seed("geo-qa", "held out", code))
    inland = [code for code in ranked if world.countries[code].neighbours]
    islands = [code for code in ranked if not world.countries[code].neighbours]
    held_out: set[str] = set(islands[::_SHARE])
    room = len(inland) // _SHARE
    for code in inland:
        if code not in held_out and room:
            region = _region(world, code, held_out, min(_REGION, room))
            held_out.update(region)
            room -= len(region)
    return {code: "eval" if code in held_out else "train" for code in world.countries}


def _region(world: World, start: str, taken: set[str], size: int) -> list[str]:
    """Return up to ``size`` countries, breadth first from ``start``, none of them taken."""
    region = [start]
    for code in region:
        for neighbour in world.countries[code].neighbours:
            if len(region) < size and neighbour not in taken and neighbour not in region:
                region.append(neighbour)
    return region
