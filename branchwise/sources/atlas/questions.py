"""Questions over the atlas, by type, with gold answers, gold passages and the hops of a trace.

The split of a question is the split of its country (all its countries are in one split). So names
of cities, countries and capitals, and facts about them, are disjoint between splits. Values that
countries share are not: continents, a few currencies (Euro, Dollar), dialling codes (+47) and time
zones, round numbers, yes and no.

A multi-hop question is left out if an earlier passage already contains the answer. For example, the
time zone of a town often contains the continent and the capital (Europe/Riga), so one search would
be enough.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count

from branchwise.types import Question

from ..settings import Split
from ..splits import hashed, split_of
from .facts import City, Country, Facts, folded
from .hops import (
    CITY_RELATIONS,
    COUNTRY_RELATIONS,
    AtlasHop,
    city_hop,
    city_value,
    country_hop,
    country_value,
)

LICENCE = "CC BY 4.0"
MIX = (
    "bridge", "single", "bridge", "comparison", "bridge", "compositional", "bridge3",
    "bridge", "single", "unanswerable",
)  # fmt: skip
"""Kinds in the order in which they are drawn, in turn; `bridge3` is a bridge of 3 hops."""

BRIDGE_RELATIONS = ("capital", "currency", "domain", "dialling_code", "continent", "area")
UNKNOWN = (
    "Who is the mayor of {s}?",
    "In which year was {s} founded?",
    "What is the name of the football club of {s}?",
    "Which river flows through {s}?",
    "How high above the sea does {s} lie?",
)
GIVE_UP = 400
"""Consecutive draws without a new question after which a kind counts as used up."""


_WORD = re.compile(r"[.+]?[^\W_]+(?:[.,'’-][^\W_]+)*")


@dataclass(frozen=True)
class Draft:
    """A question before it has an id."""

    type: str
    text: str
    answers: tuple[str, ...]
    hops: tuple[AtlasHop, ...]


@dataclass(frozen=True)
class Author:
    """Writes questions about the countries of one split."""

    facts: Facts
    split: Split

    @cached_property
    def countries(self) -> list[Country]:
        return [c for iso, c in self.facts.countries.items() if split_of(iso) == self.split]

    @cached_property
    def cities(self) -> dict[str, list[City]]:
        """Cities whose name means only one place, by country."""
        by_country: dict[str, list[City]] = {country.iso: [] for country in self.countries}
        for city in self.facts.cities:
            if city.iso in by_country and city.name in self.facts.unique:
                by_country[city.iso].append(city)
        return {iso: cities for iso, cities in by_country.items() if cities}

    def draw(self, kind: str, pick: random.Random) -> Draft | None:
        """Returns a question of `kind`, or None if the drawn places do not allow one."""
        draft: Draft | None = getattr(self, f"_{kind}")(pick)
        return None if draft is None or _is_given_away(draft) else draft

    def _country(self, pick: random.Random) -> Country:
        return self.facts.countries[pick.choice(sorted(self.cities))]

    def _city(self, pick: random.Random) -> tuple[City, Country]:
        country = self._country(pick)
        return pick.choice(self.cities[country.iso]), country

    def _single(self, pick: random.Random) -> Draft | None:
        if pick.random() < 0.5:
            city, country = self._city(pick)
            key = pick.choice(sorted(CITY_RELATIONS))
            subject, word = city.name, pick.choice(CITY_RELATIONS[key].names)
            answer = city_value(city, country, key)
        else:
            country = self._country(pick)
            key = pick.choice(sorted(COUNTRY_RELATIONS))
            subject, word = country.name, pick.choice(COUNTRY_RELATIONS[key].names)
            answer = country_value(country, key)
            city = None
        if not answer:
            return None
        text = pick.choice(
            ["What is the {w} of {s}?", "Tell me the {w} of {s}.", "{s} has which {w}?",
             "I need the {w} of {s}."]
        ).format(w=word, s=subject)  # fmt: skip
        hop = city_hop(city, country, key) if city else country_hop(country, key)
        return Draft("single", text, (answer,), (hop,))

    def _bridge(self, pick: random.Random) -> Draft | None:
        city, country = self._city(pick)
        key = pick.choice(BRIDGE_RELATIONS)
        answer, word = country_value(country, key), pick.choice(COUNTRY_RELATIONS[key].names)
        if not answer:
            return None
        text = pick.choice(
            [
                "What is the {w} of the country where {s} lies?",
                "{s} belongs to a country; what is its {w}?",
                "Name the {w} of the country that {s} is part of.",
                "Which {w} does the country around {s} have?",
                "A traveller reaches {s}. What is the {w} of that country?",
            ]
        ).format(w=word, s=city.name)
        hops = (city_hop(city, country, "country"), country_hop(country, key))
        return Draft("bridge", text, (answer,), hops)

    def _bridge3(self, pick: random.Random) -> Draft | None:
        city, country = self._city(pick)
        if country.capital == city.name:
            return None
        wordings = [
            "What is the {w} of the capital of the country where {s} lies?",
            "{s} lies in a country; what is the {w} of its capital?",
            "Name the {w} of the capital that governs {s}.",
            "Which {w} has the capital of the country around {s}?",
        ]
        first_hop = city_hop(city, country, "country")
        return self._about_capital(pick, "bridge", country, wordings, city.name, first_hop)

    def _compositional(self, pick: random.Random) -> Draft | None:
        country = self._country(pick)
        wordings = [
            "What is the {w} of the capital of {s}?",
            "Take the capital of {s}: what is its {w}?",
            "Name the {w} of the city from which {s} is governed.",
            "Which {w} does the seat of government of {s} have?",
        ]
        return self._about_capital(pick, "compositional", country, wordings, country.name)

    def _about_capital(
        self,
        pick: random.Random,
        kind: str,
        country: Country,
        wordings: list[str],
        subject: str,
        *first_hops: AtlasHop,
    ) -> Draft | None:
        capital = self.facts.capital_of(country)
        if capital is None:
            return None
        key = pick.choice(("population", "time_zone"))
        word = pick.choice(CITY_RELATIONS[key].names)
        text = pick.choice(wordings).format(w=word, s=subject)
        hops = (*first_hops, country_hop(country, "capital"), city_hop(capital, country, key))
        return Draft(kind, text, (city_value(capital, country, key),), hops)

    def _comparison(self, pick: random.Random) -> Draft | None:
        (first, home), (second, second_home) = self._city(pick), self._city(pick)
        if first.id == second.id:
            return None
        if pick.random() < 0.2:
            return self._same_country(pick, first, home, second, second_home)
        if first.population == second.population:
            return None
        text = pick.choice(
            [
                "Which city has more inhabitants, {a} or {b}?",
                "Is {a} or {b} the larger city by population?",
                "{a} or {b}: where do more people live?",
                "Between {a} and {b}, which has the larger population?",
            ]
        ).format(a=first.name, b=second.name)
        larger = max(first, second, key=lambda c: c.population)
        hops = (
            city_hop(first, home, "population"),
            city_hop(second, second_home, "population"),
        )
        return Draft("comparison", text, (larger.name,), hops)

    def _same_country(
        self, pick: random.Random, first: City, home: Country, second: City, second_home: Country
    ) -> Draft | None:
        if pick.random() < 0.5:  # otherwise nearly every answer is "no"
            second, second_home = pick.choice(self.cities[home.iso]), home
        if first.id == second.id:
            return None
        text = pick.choice(
            [
                "Do {a} and {b} lie in the same country?",
                "Are {a} and {b} cities of one country?",
                "Is {a} in the same country as {b}?",
                "Do {a} and {b} belong to one country?",
            ]
        ).format(a=first.name, b=second.name)
        hops = (city_hop(first, home, "country"), city_hop(second, second_home, "country"))
        return Draft("comparison", text, ("yes" if home == second_home else "no",), hops)

    def _unanswerable(self, pick: random.Random) -> Draft | None:
        city, _ = self._city(pick)
        return Draft("unanswerable", pick.choice(UNKNOWN).format(s=city.name), (), ())


def _is_given_away(draft: Draft) -> bool:
    """Returns whether the question, or a passage before the last, contains the answer.

    Comparisons name both sides, and their hops may come in any order, so they always pass.
    """
    if draft.type == "comparison":
        return False
    earlier = [_words(hop.passage.text) for hop in draft.hops[:-1]]
    return any(
        answer.casefold() in draft.text.casefold()
        or any(_words(answer) in text for text in earlier)
        for answer in draft.answers
    )


def _words(text: str) -> str:
    """Returns the words with spaces around them.

    ".is" and "+47" keep their sign; otherwise Iceland's domain would be "is".
    """
    words = (word[: word[0] in ".+"] + folded(word) for word in _WORD.findall(text))
    return f" {' '.join(words)} "


def questions_of(facts: Facts, split: Split, seed: int) -> Iterator[Question]:
    """Yields questions of one split, one kind after another as in `MIX`; the same for a seed.

    A used-up kind drops out; the questions end when all kinds are used up.
    """
    author, texts, open_kinds = Author(facts, split), set[str](), set(MIX)
    for number in count():
        kind = MIX[number % len(MIX)]
        if not open_kinds:
            return
        if kind not in open_kinds:
            continue
        for attempt in range(GIVE_UP):
            draft = author.draw(
                kind, random.Random(hashed("question", seed, split, number, attempt))
            )
            if draft is not None and folded(draft.text) not in texts:
                texts.add(folded(draft.text))
                yield _question(draft, split)
                break
        else:
            open_kinds.remove(kind)


def _question(draft: Draft, split: Split) -> Question:
    return Question(
        id=f"atlas-{hashed('id', draft.text):016x}",
        source="atlas",
        question=draft.text,
        answers=draft.answers,
        type=draft.type,
        hops=len(draft.hops) or None,
        answerable=bool(draft.answers),
        supporting_titles=tuple(hop.passage.title for hop in draft.hops),
        supporting_ids=tuple(hop.passage.id for hop in draft.hops),
        split=split,
        licence=LICENCE,
        extra={"hops": [hop.as_extra() for hop in draft.hops]},
    )
