"""References of a question: its supporting passages, among others from the same region."""

import random
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from branchwise.types import Paragraph, Passage, Question

from ..splits import hashed
from .facts import City, Country, Facts
from .passages import city_id, city_text, country_id, country_text


@dataclass(frozen=True)
class Shelf:
    """Adds references to questions.

    Attributes:
        facts: Places of the corpus.
        seed: Seed of the choice and of the order.
    """

    facts: Facts
    seed: int

    def with_references(self, question: Question, n: int) -> Question:
        """Returns the question with `n` paragraphs in random order, all supporting ones among them.

        Distractors come from near each supporting place in turn: other cities of a city's country,
        and other countries of a country's continent. If these run out, any country is taken.
        """
        pick = random.Random(hashed("references", self.seed, question.id))
        texts = {name: self._passage(self._places[name]) for name in question.supporting_ids}
        regions = [self._neighbours[_region(self._places[name])] for name in texts] or [[]]
        while len(texts) < n:
            region = regions[len(texts) % len(regions)]
            unused = [place for place in region if _id(place) not in texts]
            distractor = self._passage(pick.choice(unused or self._countries))
            texts[distractor.id] = distractor
        shown = pick.sample(list(texts.values()), len(texts))
        paragraphs = tuple(
            Paragraph(**dict(passage), is_supporting=passage.id in question.supporting_ids)
            for passage in shown
        )
        return question.model_copy(update={"paragraphs": paragraphs})

    @cached_property
    def _countries(self) -> list[City | Country]:
        return list(self.facts.countries.values())

    @cached_property
    def _places(self) -> dict[str, City | Country]:
        return {_id(place): place for place in (*self._countries, *self.facts.cities)}

    @cached_property
    def _neighbours(self) -> dict[str, list[City | Country]]:
        """Cities by country, and countries by continent."""
        by_region: dict[str, list[City | Country]] = defaultdict(list)
        for place in self._places.values():
            by_region[_region(place)].append(place)
        return by_region

    def _passage(self, place: City | Country) -> Passage:
        if isinstance(place, Country):
            return country_text(place).passage
        return city_text(place, self.facts.countries[place.iso]).passage


def _region(place: City | Country) -> str:
    return place.iso if isinstance(place, City) else place.continent


def _id(place: City | Country) -> str:
    return country_id(place) if isinstance(place, Country) else city_id(place)
