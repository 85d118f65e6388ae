"""Gold documents D*: the passages of the corpus that a question needs.

The first of these that exists: ids of the supporting paragraphs that are in the corpus; passages
with a supporting title that contain a gold answer as whole words (yes and no do not count); all
passages with that title. Otherwise, the gold documents are unknown. (Titles are ambiguous in
MuSiQue, partly absent in PopQA, unknown in Bamboogle and NQ.)

A title that the corpus does not have exactly may be a `comparable` one, underscores apart, or the
path or file name of a document that is titled by its heading.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from branchwise.base import comparable, holds_phrase
from branchwise.types import Passage, Question

from .documents import CONVERTERS, DOCUMENT_READERS
from .packing import unpacked_name

CLOSED_ANSWERS = {"yes", "no"}
_PART = re.compile(r"#\d+\Z")
"""End of the id of a passage of a document that was cut."""


def resolve_gold(
    questions: Iterable[Question],
    passages: Sequence[Passage],
    aliases: Mapping[str, str] | None = None,
) -> list[Question]:
    """Returns the questions with `supporting_ids` set to passages of the corpus.

    Drops gold documents that are not in the corpus (callers count them). Unknown ones stay empty.
    Supporting titles are replaced by the corpus's spelling.

    Args:
        questions: Questions with supporting ids, marked paragraphs or supporting titles, or
            none of them.
        passages: Passages of the corpus.
        aliases: Ids of merged passages → the id that was kept.
    """
    questions, aliases = list(questions), aliases or {}
    corpus_ids = {passage.id for passage in passages}
    by_title: dict[str, list[Passage]] = defaultdict(list)
    for passage in passages:
        by_title[passage.title].append(passage)
    titles = {title for question in questions for title in question.supporting_titles}
    similar = _similar(titles - by_title.keys(), passages)

    def resolved(question: Question) -> Question:
        marked = question.supporting_ids or tuple(
            p.id for p in question.paragraphs if p.is_supporting and p.id is not None
        )
        # A merged passage is in the corpus under the id of the one that it repeats.
        ids = [name for name in (aliases.get(name, name) for name in marked) if name in corpus_ids]
        spelled: list[str] = []
        titled: list[Passage] = []
        for title in question.supporting_titles:
            if ids and title in by_title:  # neither the spelling nor the passages are open
                spelled.append(title)
                continue
            candidates = by_title.get(title) or similar.get(_document_key(title)) or ()
            gold = _holding_answers(candidates, question.answers)
            spelled += dict.fromkeys(passage.title for passage in gold) or [title]
            titled += gold
        changed = {
            "supporting_titles": tuple(spelled),
            "supporting_ids": tuple(dict.fromkeys(ids or (passage.id for passage in titled))),
        }
        # Copies a question only if it differs, because large sets are held in memory.
        is_same = all(getattr(question, name) == value for name, value in changed.items())
        return question if is_same else question.model_copy(update=changed)

    return [resolved(question) for question in questions]


def title_key(title: str) -> str:
    """Returns the form in which titles are compared; underscores are blanks."""
    return comparable(title.replace("_", " "))


def _similar(titles: Iterable[str], passages: Iterable[Passage]) -> Mapping[str, Sequence[Passage]]:
    """Returns the passages whose title, path or file name is similar to one of `titles`."""
    similar: dict[str, list[Passage]] = {_document_key(title): [] for title in titles}
    for passage in passages if similar else ():
        for key in {title_key(name) for name in _names(passage)} & similar.keys():
            similar[key].append(passage)
    return similar


def _document_key(title: str) -> str:
    """Returns the key of a title; of a file that was converted (`travel.html`), without its ending.

    The corpus has the text file of the same name.
    """
    path = PurePosixPath(title)
    return title_key(str(path.with_suffix("")) if path.suffix.lower() in CONVERTERS else title)


def _names(passage: Passage) -> Iterator[str]:
    """Yields the title; of a document also its path, with and without the corpus folder's name, and
    its file name, with and without its ending.
    """
    yield passage.title
    file = PurePosixPath(_PART.sub("", passage.id))
    file = file.with_name(unpacked_name(file.name)) if file.name else file
    if file.suffix.lower() in DOCUMENT_READERS:
        below_folder = PurePosixPath(*file.parts[1:])
        for path in (file, below_folder, PurePosixPath(file.name)):
            yield from (str(path), str(path.with_suffix("")))


def _holding_answers(candidates: Sequence[Passage], answers: Sequence[str]) -> Sequence[Passage]:
    """Returns passages of one title that contain a gold answer, or all of them."""
    golds = [answer for answer in answers if answer.strip().lower() not in CLOSED_ANSWERS]
    holding = [p for p in candidates if any(holds_phrase(p.text, gold) for gold in golds)]
    return holding or candidates
