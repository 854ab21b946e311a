"""geo-qa's facts, passages and questions against the raw tables of GeoNames."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from typing import Any

import pytest

from tests.environments.geo_reference import Reference, all_cities, countries, plain
from vf.environments.bundled.geo.drawing import MOST_DOCUMENTS, Questioner, split_by_country
from vf.environments.bundled.geo.facts import World, load_world
from vf.environments.bundled.geo.passages import documents
from vf.environments.bundled.geo.questions import Question
from vf.environments.bundled.geo.spellings import capital_names, country_names
from vf.environments.environment import Split
from vf.rubrics.outcomes.text import normalize_answer
from vf.runtime.errors import ConfigError

CITIES = 1500
SPLITS: list[Split] = ["train", "eval"]


@cache
def world() -> World:
    return load_world(CITIES)


@cache
def questions(split: Split, seed: int = 0, count: int = 900) -> list[Question]:
    return list(Questioner(world(), split).questions(count, (1, 3), seed))


@cache
def passages() -> dict[str, str]:
    return {document.id: f"{document.title}\n{document.text}" for document in documents(world())}


def as_lists(query: Any) -> Any:
    return [as_lists(part) for part in query] if isinstance(query, tuple) else query


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
def test_every_question_has_exactly_the_answer_that_the_raw_tables_give(split: Split) -> None:
    reference = Reference(world().cities)
    for question in questions(split):
        assert reference.answers(as_lists(question.query)) == {question.answers[0]}, question.text


@pytest.mark.slow
@pytest.mark.gate
def test_the_corpus_is_all_countries_the_largest_cities_and_the_capitals() -> None:
    assert {c["iso"] for c in countries()} == set(world().countries)
    ranked = sorted(all_cities(), key=lambda city: -city["population"])
    least = ranked[CITIES - 1]["population"]
    assert {c["geonameid"] for c in ranked if c["population"] > least} <= set(world().cities)
    small = [city for city in world().cities.values() if city.population < least]
    assert {city.number for city in small} <= set(world().capitals.values())
    assert len(passages()) == len(world().countries) + len(world().cities)


@pytest.mark.slow
@pytest.mark.gate
def test_no_fact_of_a_held_out_question_is_asked_in_training() -> None:
    trained = {fact for seed in range(3) for q in questions("train", seed) for fact in q.facts}
    held_out = {fact for seed in range(3) for q in questions("eval", seed) for fact in q.facts}
    assert len(trained) > 1000
    assert len(held_out) > 300
    assert not trained & held_out


def test_a_border_is_one_fact_from_either_side() -> None:
    told = [
        fact for split in SPLITS for q in questions(split) for fact in q.facts if "borders" in fact
    ]
    assert told
    assert all(one < two for one, _, two in told)


@pytest.mark.parametrize("split", SPLITS)
def test_facts_are_in_the_passages_that_are_cited_for_them(split: Split) -> None:
    for question in questions(split):
        for doc_id, relation, value in question.facts:
            sources = {doc_id, value} if relation == "borders" else {doc_id}
            (source, *_) = sources & set(question.documents)
            (other,) = sources - {source} or {value}
            text = passages()[source]
            if relation == "population" or relation == "area":
                assert f" {int(value):,}" in text
            elif other.startswith("country-"):
                assert world().place(other).name.removeprefix("The ") in text
            else:
                assert value in text


@pytest.mark.parametrize("split", SPLITS)
def test_no_question_gives_its_answer_away(split: Split) -> None:
    for question in questions(split):
        words = normalize_answer(question.text).split()
        for answer in question.answers:
            wanted = normalize_answer(answer).split()
            assert wanted
            spans = [words[i : i + len(wanted)] for i in range(len(words))]
            assert wanted not in spans, question.text


@pytest.mark.parametrize("split", SPLITS)
def test_hops_are_even_and_every_passage_is_one_that_is_needed(split: Split) -> None:
    asked = questions(split)
    assert Counter(q.hops for q in asked) == {1: 300, 2: 300, 3: 300}
    assert len({q.text for q in asked}) == len(asked)
    for question in asked:
        assert 1 <= len(question.documents) <= MOST_DOCUMENTS
        told = {name for one, relation, two in question.facts for name in (one, two)}
        assert set(question.documents) <= told
        assert len(set(question.documents)) == len(question.documents)


def test_every_kind_of_phrase_and_of_question_is_drawn() -> None:
    asked = [question for split in SPLITS for question in questions(split)]
    words = Counter(re.findall(r"'([a-z-]+)'", " ".join(str(q.query) for q in asked)))
    kinds = {"country", "city", "country-of", "capital-of", "larger", "largest-neighbour"}
    kinds |= {"between", "phone", "domain", "capital", "currency", "population", "area"}
    kinds |= {"timezone", "name", "count"}
    assert kinds <= set(words)


def test_the_most_frequent_answers_are_rare() -> None:
    answers = Counter(q.answers[0] for q in questions("eval"))
    assert sum(count for _, count in answers.most_common(3)) < 0.1 * answers.total()


def test_a_seed_gives_the_same_questions_and_another_gives_others() -> None:
    again = list(Questioner(world(), "train").questions(100, (1, 3), 0))
    other = list(Questioner(world(), "train").questions(100, (1, 3), 1))
    assert again == questions("train")[:100]
    assert not {q.text for q in other} >= {q.text for q in again}


def test_the_split_of_a_country_hangs_on_nothing_but_the_country() -> None:
    sides = split_by_country(world())
    assert sides == split_by_country(load_world(2 * CITIES))
    assert 0.2 < sum(side == "eval" for side in sides.values()) / len(sides) < 0.3


def test_other_names_of_a_country_are_not_another_country() -> None:
    for country in world().countries.values():
        others = {normalize_answer(c.name) for c in world().countries.values() if c is not country}
        assert not others & {normalize_answer(name) for name in country_names(country)}


def test_other_names_of_a_capital_are_not_another_place() -> None:
    everything = {plain(c.name) for c in world().cities.values()}
    everything |= {plain(c.capital) for c in world().countries.values()}
    for code, country in world().countries.items():
        own = {plain(country.capital)}
        if code in world().capitals:
            own.add(plain(world().cities[world().capitals[code]].name))
        names = {plain(name) for name in capital_names(world(), country)}
        assert own <= names
        assert not names & (everything - own), country.name


@pytest.mark.parametrize(
    ("code", "name"), [("GB", "UK"), ("US", "USA"), ("NL", "Holland"), ("CI", "Côte d'Ivoire")]
)
def test_well_known_names_of_countries_count(code: str, name: str) -> None:
    assert name in country_names(world().countries[code])


@pytest.mark.parametrize(
    ("code", "name"), [("UA", "Kiev"), ("BR", "Brasília"), ("BR", "Brasilia"), ("KZ", "Astana")]
)
def test_well_known_names_of_capitals_count(code: str, name: str) -> None:
    assert name in capital_names(world(), world().countries[code])


@pytest.mark.slow
def test_more_questions_than_there_are_is_a_config_error() -> None:
    few = Questioner(load_world(1), "eval")
    with pytest.raises(ConfigError, match=r"geo-qa: found only \d+ different questions"):
        list(few.questions(20_000, (1, 1), 0))  # countries only, and the capitals


@pytest.mark.slow
def test_more_cities_than_there_are_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"GeoNames lists \d+ cities, not 10000000"):
        load_world(10_000_000)
