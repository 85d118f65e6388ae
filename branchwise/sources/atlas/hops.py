"""One hop of a trace: alternative queries, the passage, alternative evidence.

One of the queries is weak on purpose (the bare name), so that a search tree can still teach a
policy that copies traces. There are few wordings, because a small policy that sees many learns none
of them.
"""

from dataclasses import dataclass

from branchwise.types import Passage

from .facts import City, Country
from .passages import FactPassage, city_text, country_text


@dataclass(frozen=True, slots=True)
class Relation:
    """A fact of a place: its names in questions and queries, and its sentence in evidence."""

    names: tuple[str, ...]
    states: str


COUNTRY_RELATIONS = {
    "capital": Relation(("capital", "capital city"), "{a} is the capital of {s}"),
    "currency": Relation(("currency", "money"), "The currency of {s} is the {a}"),
    "domain": Relation(("internet domain", "web domain"), "The internet domain of {s} is {a}"),
    "dialling_code": Relation(
        ("dialling code", "telephone code"), "The dialling code of {s} is {a}"
    ),
    "continent": Relation(("continent", "part of the world"), "{s} lies in {a}"),
    "area": Relation(
        ("area in square kilometres", "surface area"), "The area of {s} is {a} square kilometres"
    ),
    "population": Relation(("population", "number of inhabitants"), "{s} has {a} inhabitants"),
}
CITY_RELATIONS = {
    "country": Relation(("country",), "{s} is in {a}"),
    "population": Relation(("population", "number of inhabitants"), "{s} has {a} inhabitants"),
    "time_zone": Relation(("time zone", "local time"), "The time zone of {s} is {a}"),
}


@dataclass(frozen=True, slots=True)
class AtlasHop:
    """One search of a trace: any of `queries`, the passage to find, any of `evidence`."""

    queries: tuple[str, ...]
    passage: Passage
    evidence: tuple[str, ...]

    def as_extra(self) -> dict[str, object]:
        """Returns the form that `Question.extra["hops"]` stores."""
        return {
            "queries": list(self.queries),
            "passage_id": self.passage.id,
            "title": self.passage.title,
            "evidence": list(self.evidence),
        }


def country_value(country: Country, relation: str) -> str:
    """Returns a fact of a country as in its passage; "" if unknown."""
    value = getattr(country, relation)
    return f"{value:,}" if isinstance(value, int) and value else str(value or "")


def city_value(city: City, country: Country, relation: str) -> str:
    """Returns a fact of a city as in its passage."""
    if relation == "country":
        return country.name
    return f"{city.population:,}" if relation == "population" else city.time_zone


def country_hop(country: Country, relation: str) -> AtlasHop:
    """Returns the search for a fact of a country."""
    words, value = COUNTRY_RELATIONS[relation], country_value(country, relation)
    return _hop(country.name, country_text(country), relation, words, value)


def city_hop(city: City, country: Country, relation: str) -> AtlasHop:
    """Returns the search for a fact of a city."""
    words, value = CITY_RELATIONS[relation], city_value(city, country, relation)
    return _hop(city.name, city_text(city, country), relation, words, value)


def _hop(name: str, text: FactPassage, relation: str, words: Relation, value: str) -> AtlasHop:
    queries = (f"{name} {words.names[0]}", f"{words.names[0]} of {name}", name)
    evidence = (text.sentences[relation], words.states.format(s=name, a=value))
    return AtlasHop(queries, text.passage, evidence)
