"""Gold documents D*: the passages of the corpus that a question needs.

The first of these that exists: ids of the supporting paragraphs that are in the corpus; passages
with a supporting title that contain a gold answer as whole words (yes and no do not count); all
passages with that title. Otherwise, the gold documents are unknown. (Titles are ambiguous in
MuSiQue, partly absent in PopQA, unknown in Bamboogle and NQ.)
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from storage.records import Passage, Question
from storage.text import holds_phrase

CLOSED_ANSWERS = {"yes", "no"}


def resolve_gold(
    questions: Iterable[Question],
    passages: Sequence[Passage],
    aliases: Mapping[str, str] | None = None,
) -> list[Question]:
    """Returns the questions with `supporting_ids` set to passages of the corpus.

    Drops gold documents that are not in the corpus (callers count them). Unknown ones stay empty.

    Args:
        questions: Questions with supporting ids, marked paragraphs or supporting titles, or
            none of them.
        passages: Passages of the corpus.
        aliases: Ids of merged passages → the id that was kept.
    """
    known = {passage.id for passage in passages}
    by_title: dict[str, list[Passage]] = defaultdict(list)
    for passage in passages:
        by_title[passage.title].append(passage)

    def resolved(question: Question) -> Question:
        gold = _gold(question, known, by_title, aliases or {})
        # Copies a question only if it differs, because large sets are held in memory.
        same = gold == question.supporting_ids
        return question if same else question.model_copy(update={"supporting_ids": gold})

    return [resolved(question) for question in questions]


def _gold(
    question: Question,
    known: set[str],
    by_title: Mapping[str, Sequence[Passage]],
    aliases: Mapping[str, str],
) -> tuple[str, ...]:
    marked = question.supporting_ids or tuple(
        p.id for p in question.paragraphs if p.is_supporting and p.id is not None
    )
    kept = (aliases.get(name, name) for name in marked)
    held = tuple(dict.fromkeys(name for name in kept if name in known))
    if held:
        return held
    found: dict[str, None] = {}
    for title in question.supporting_titles:
        found.update(dict.fromkeys(_titled(by_title.get(title, ()), question.answers)))
    return tuple(found)


def _titled(candidates: Sequence[Passage], answers: Sequence[str]) -> list[str]:
    """Returns passages of one title that contain a gold answer, or all of them."""
    golds = [answer for answer in answers if answer.strip().lower() not in CLOSED_ANSWERS]
    holding = [p.id for p in candidates if any(holds_phrase(p.text, gold) for gold in golds)]
    return holding or [p.id for p in candidates]
