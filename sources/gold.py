"""Gold documents D*: which passages of the corpus a question needs.

Ids of the paragraphs marked supporting, as far as the corpus holds them; else passages with a
supporting title that contain a gold answer as whole words (yes and no prove nothing), or failing
that all with that title; else unknown.
(Titles are ambiguous in MuSiQue, partly absent in PopQA, unknown in Bamboogle and NQ.)
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
    """Returns the questions with `supporting_ids` filled in by passages that the corpus holds.

    A gold document missing from the corpus is dropped (callers count them); what stays unknown
    stays empty.

    Args:
        questions: Questions with supporting ids, marked paragraphs or supporting titles, or
            none of them.
        passages: the corpus.
        aliases: ids of folded passages → the id that was kept.
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
