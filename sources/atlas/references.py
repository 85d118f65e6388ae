"""References of a question: its supporting passages, among others from the same region."""

import random
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from sources.atlas.facts import City, Country, Facts
from sources.atlas.passages import city_id, city_text, country_id, country_text
from sources.splits import hashed
from storage.records import Paragraph, Passage, Question


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
        wanted = [self._near(self._places[name]) for name in texts] or [[]]
        while len(texts) < n:
            near = wanted[len(texts) % len(wanted)]
            others = [place for place in near if _id(place) not in texts]
            found = self._passage(pick.choice(others or self._countries))
            texts[found.id] = found
        shown = pick.sample(list(texts.values()), len(texts))
        return question.model_copy(
            update={
                "paragraphs": tuple(
                    Paragraph(
                        title=passage.title,
                        text=passage.text,
                        is_supporting=passage.id in question.supporting_ids,
                        id=passage.id,
                    )
                    for passage in shown
                )
            }
        )

    @cached_property
    def _countries(self) -> list[City | Country]:
        return list(self.facts.countries.values())

    @cached_property
    def _places(self) -> dict[str, City | Country]:
        return {_id(place): place for place in (*self._countries, *self.facts.cities)}

    @cached_property
    def _neighbours(self) -> dict[str, list[City | Country]]:
        """Cities by country, and countries by continent."""
        found: dict[str, list[City | Country]] = defaultdict(list)
        for place in self._places.values():
            found[place.iso if isinstance(place, City) else place.continent].append(place)
        return found

    def _near(self, place: City | Country) -> list[City | Country]:
        return self._neighbours[place.iso if isinstance(place, City) else place.continent]

    def _passage(self, place: City | Country) -> Passage:
        if isinstance(place, Country):
            return country_text(place).passage
        return city_text(place, self.facts.countries[place.iso]).passage


def _id(place: City | Country) -> str:
    return country_id(place) if isinstance(place, Country) else city_id(place)
