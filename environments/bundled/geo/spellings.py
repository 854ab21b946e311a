"""What a right answer may be called: names, their plain spellings, and well-known other names."""

from __future__ import annotations

import unicodedata

from vf.environments.bundled.geo.facts import Country, World, fold

_ALSO = {
    "AE": ("UAE", "Emirates"),
    "AX": ("Åland", "Åland Islands", "Aland"),
    "BA": ("Bosnia", "Bosnia-Herzegovina"),
    "BL": ("Saint Barthélemy", "St Barthelemy"),
    "BN": ("Brunei Darussalam",),
    "BO": ("Plurinational State of Bolivia",),
    "BS": ("The Bahamas",),
    "CC": ("Cocos (Keeling) Islands", "Keeling Islands"),
    "CD": ("DR Congo", "DRC", "Congo-Kinshasa"),
    "CG": ("Congo", "Congo-Brazzaville"),
    "CI": ("Côte d'Ivoire", "Cote d'Ivoire"),
    "CN": ("People's Republic of China", "PRC"),
    "CV": ("Cape Verde",),
    "CW": ("Curaçao",),
    "CZ": ("Czech Republic",),
    "FK": ("Falklands", "Malvinas"),
    "FM": ("Federated States of Micronesia",),
    "GB": ("UK", "Great Britain", "Britain"),
    "GM": ("The Gambia",),
    "IR": ("Islamic Republic of Iran",),
    "KN": ("St Kitts and Nevis",),
    "KP": ("Democratic People's Republic of Korea", "DPRK"),
    "KR": ("Republic of Korea",),
    "LA": ("Lao PDR", "Lao People's Democratic Republic"),
    "LC": ("St Lucia",),
    "MD": ("Republic of Moldova",),
    "MF": ("St Martin",),
    "MK": ("Macedonia", "Republic of North Macedonia"),
    "MM": ("Burma",),
    "MO": ("Macau",),
    "NL": ("Netherlands", "Holland"),
    "PN": ("Pitcairn Islands",),
    "PS": ("Palestine", "State of Palestine"),
    "RE": ("Réunion",),
    "RU": ("Russian Federation",),
    "SH": ("St Helena",),
    "ST": ("São Tomé and Príncipe",),
    "SY": ("Syrian Arab Republic",),
    "SZ": ("Swaziland",),
    "TL": ("Timor-Leste", "East Timor"),
    "TR": ("Türkiye",),
    "TZ": ("United Republic of Tanzania",),
    "US": ("USA", "United States of America", "America"),
    "VA": ("Vatican City", "Holy See"),
    "VC": ("St Vincent and the Grenadines",),
    "VE": ("Bolivarian Republic of Venezuela",),
    "VI": ("US Virgin Islands", "United States Virgin Islands"),
    "VN": ("Viet Nam",),
}

_LAST_WORDS_WITH_ARTICLE = ("Islands", "Republic", "Emirates", "Kingdom", "States", "Territory")
_WITH_ARTICLE = {"BS", "CD", "CG", "GM", "PH", "MV", "KM", "SC", "VA", "IM", "TF"}


def in_text(country: Country) -> str:
    """Return a country's name as it stands within a sentence: "the United States"."""
    if country.name.startswith("The "):
        return f"the {country.name[4:]}"
    if country.name.endswith(_LAST_WORDS_WITH_ARTICLE) or country.code in _WITH_ARTICLE:
        return f"the {country.name}"
    return country.name


def plain(name: str) -> str:
    """Return a name without accents, in its own case."""
    letters = unicodedata.normalize("NFKD", name)
    return "".join(c for c in letters if not unicodedata.combining(c))


def country_names(country: Country) -> tuple[str, ...]:
    """Return every name of a country that counts as right, its own first."""
    return _with_plain([country.name, *_ALSO.get(country.code, ())])


def capital_names(world: World, country: Country) -> tuple[str, ...]:
    """Return every name of a country's capital that counts as right, its own first.

    GeoNames' other names count where they are written in Latin letters and are not the name of
    another city of the corpus, a country, or another country's capital: a wrong answer must not
    become right because somebody once listed it as a spelling.
    """
    names = [country.capital]
    number = world.capitals.get(country.code)
    if number is not None:
        city = world.cities[number]
        taken = world.names - {fold(city.name), fold(country.capital)}
        names.append(city.name)
        names += [name for name in city.alternates if _latin(name) and fold(name) not in taken]
    return _with_plain(names)


def _with_plain(names: list[str]) -> tuple[str, ...]:
    both = [spelling for name in names for spelling in (name, plain(name))]
    return tuple(dict.fromkeys(both))


def _latin(name: str) -> bool:
    letters = [c for c in name if c.isalpha()]
    return len(letters) > 2 and all("LATIN" in unicodedata.name(c, "") for c in letters)
