"""The embedded source: GeoNames facts give a corpus and questions that depend only on a seed."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from branchwise.base import ConfigError
from branchwise.types import Passage, Question

from ..settings import Split
from .facts import load_facts
from .passages import city_text, country_text
from .questions import questions_of
from .references import Shelf

DEFAULT_PER_PART = 2_000
"""Questions per split if no limit is given; there are many more."""

HOPELESS = 500
"""Most consecutive questions that are left out."""


def build_corpus(cities: int | None = None) -> list[Passage]:
    """Returns one passage per country (252) and one per city.

    Args:
        cities: Number of cities, largest first; None for all 34,006.
    """
    facts = load_facts(cities)
    countries = [country_text(country).passage for country in facts.countries.values()]
    return countries + [city_text(city, facts.countries[city.iso]).passage for city in facts.cities]


def build_questions(
    split: Split,
    limit: int | None,
    seed: int = 0,
    cities: int | None = None,
    *,
    unfit: Callable[[Question], str | None] = lambda _: None,
    skip: int = 0,
    references: int = 0,
) -> list[Question]:
    """Returns questions of a split, a balanced mixture of types.

    The first n questions are the same under any limit.

    Args:
        split: warm, train, dev or test.
        limit: Number of questions.
        seed: Random seed for places and wordings.
        cities: Number of cities in the corpus; questions name only those.
        unfit: Returns the reason to leave a question out; the others keep their order.
        skip: Number of questions to leave out first.
        references: Paragraphs per question; 0 for none.
    """
    facts, number = load_facts(cities), DEFAULT_PER_PART if limit is None else limit
    questions = questions_of(facts, split, seed)
    if references:
        shelf = Shelf(facts, seed)
        questions = (shelf.with_references(question, references) for question in questions)
    return list(islice(_fitting(questions, unfit), skip, skip + number))


def _fitting(
    questions: Iterable[Question], unfit: Callable[[Question], str | None]
) -> Iterator[Question]:
    """Yields the questions that are not left out.

    Raises:
        ConfigError: If `HOPELESS` consecutive questions are left out, because the next ones would
            be too.
    """
    refused = 0
    for question in questions:
        if (reason := unfit(question)) is None:
            refused = 0
            yield question
        elif (refused := refused + 1) == HOPELESS:
            raise ConfigError(
                f"data.source: atlas's questions are {reason}. Set data.references for questions "
                "with paragraphs, or change agent.protocol"
            )
