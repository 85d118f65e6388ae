"""The hops of a question: the query, the passage, and the evidence to copy from it.

Atlas knows its own wordings and gives them in `Question.extra["hops"]`. For the other sets
(HotpotQA, 2WikiMultiHopQA, MuSiQue, PopQA) the supporting passages give the hops: the query is the
title or a sub-question, and the evidence is the sentence that answers most of the question.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from branchwise.agent import without_tags
from branchwise.base import holds_phrase
from branchwise.rewards import CLOSED_ANSWERS
from branchwise.types import Passage, Question

MAX_EVIDENCE_CHARS = 280
"""Length of the longest evidence that a trace copies; the protocol allows 300 characters."""

_SENTENCE_END = re.compile(r"(?<=[a-z0-9)\]\"”][.!?])\s+(?=[\"“(]?[A-Z0-9])")
_WORD = re.compile(r"\w+(?:[-'’]\w+)*")
_ARTICLES = "a an and are as at be by did do does for from had has have how in is it its of on or"
_QUESTION_WORDS = (
    "that the their this to was were what when where which who whom whose why will with"
)
_STOP_WORDS = frozenset(f"{_ARTICLES} {_QUESTION_WORDS}".split())
_KEY_WORDS = 6
_TITLE_WORDS = 6
_PUNCTUATION = '.,;:?!"“”()'
_ANSWER_WEIGHT, _NEXT_TITLE_WEIGHT = 6.0, 4.0


@dataclass(frozen=True, slots=True)
class GoldHop:
    """One search: wordings of its query, the passage it must find, wordings of the evidence."""

    queries: tuple[str, ...]
    passage_id: str
    evidence: tuple[str, ...]


def hops_of(question: Question, passages: Mapping[str, Passage]) -> list[GoldHop]:
    """Returns the question's hops in an order in which they can be taken.

    Empty if a supporting passage is unknown or not in the corpus, because the answer would then be
    a guess.

    Args:
        question: Question with `supporting_ids`, or of atlas, with `extra["hops"]`.
        passages: Corpus by id.
    """
    if question.source == "atlas" and (stored := question.extra.get("hops")):
        return [
            GoldHop(tuple(hop["queries"]), str(hop["passage_id"]), tuple(hop["evidence"]))
            for hop in stored
        ]
    gold = _one_per_title(question, [passages[i] for i in question.supporting_ids if i in passages])
    if not gold or {p.title for p in gold} < set(question.supporting_titles):
        return []
    ordered = _in_order(question, gold)
    return [
        GoldHop(
            _queries(question, passage, place),
            passage.id,
            (best_sentence(question, passage, ordered[place + 1 :]),),
        )
        for place, passage in enumerate(ordered)
    ]


def _one_per_title(question: Question, gold: list[Passage]) -> list[Passage]:
    """Returns one passage of each supporting title, if the gold passages are too many.

    All passages of a document that was cut have its title. Only one of them is needed, probably the
    one with the best sentence.
    """
    titles = [title for title in question.supporting_titles if title]
    if not 0 < len(titles) < len(gold) or (question.hops or 0) >= len(gold):
        return gold
    best: dict[str, Passage] = {}
    for passage in gold:
        later = [p for p in gold if p.title != passage.title]
        older = best.setdefault(passage.title, passage)
        if _best(question, passage, later)[0] > _best(question, older, later)[0]:
            best[passage.title] = passage
    return list(best.values())


def stated_answers(question: Question) -> tuple[str, ...]:
    """Returns the answers that a passage can state: not yes and no, which are common words."""
    return tuple(a for a in question.answers if a.strip().lower() not in CLOSED_ANSWERS)


def queries_about(question: Question, titles: Collection[str]) -> tuple[str, ...]:
    """Returns search queries for a question without known gold passages.

    If the question names a title: the title with the question's other key words, in both orders,
    and the title alone. Otherwise: the key words, and the question itself.

    Args:
        titles: Titles of the corpus.
    """
    name = _named_title(question.question, titles)
    words = " ".join(_key_words(question, name or "")[:_KEY_WORDS])
    queries = (f"{name} {words}", f"{words} {name}", name) if name else (words, question.question)
    return tuple(dict.fromkeys(" ".join(query.split()) for query in queries if query.strip()))


def _key_words(question: Question, title: str) -> list[str]:
    """Returns the words of a question that are neither stop words nor in `title`."""
    left_out = {word.lower() for word in _WORD.findall(title)} | _STOP_WORDS
    return [word for word in _WORD.findall(question.question) if word.lower() not in left_out]


def _named_title(text: str, titles: Collection[str]) -> str | None:
    """Returns the longest title in `text`, or the last one of equal length."""
    words = [word.strip(_PUNCTUATION) for word in text.split()]
    for length in range(min(_TITLE_WORDS, len(words)), 0, -1):
        # The first word of a sentence is always capitalised.
        for start in range(len(words) - length, 0, -1):
            piece = " ".join(words[start : start + length])
            if piece in titles and piece.lower() not in _STOP_WORDS:
                return piece
    return None


def _in_order(question: Question, gold: Sequence[Passage]) -> list[Passage]:
    """Returns first the passages that the question names, last the one with the answer.

    MuSiQue's own order of sub-questions replaces this guess. A one-hop question needs only one
    passage (PopQA also lists the passage of the answer itself).
    """
    steps = _decomposition(question)
    titles = {step.get("support_title") for step in steps}
    if steps and all(passage.title in titles for passage in gold):
        return _in_order_of(steps, gold)
    if question.hops == 1:
        return sorted(gold, key=lambda p: -_holds_answer(question, p) - _is_named(question, p))[:1]
    return sorted(gold, key=lambda p: _holds_answer(question, p) - _is_named(question, p))


def _in_order_of(steps: Sequence[Mapping[str, str]], gold: Sequence[Passage]) -> list[Passage]:
    """Returns for each step a passage of its title; of several, one that states its answer."""
    remaining, ordered = list(gold), []
    for step in steps:
        if titled := [
            passage for passage in remaining if passage.title == step.get("support_title")
        ]:
            best = max(titled, key=lambda passage: holds_phrase(passage.text, str(step["answer"])))
            remaining.remove(best)
            ordered.append(best)
    return [*ordered, *remaining]


def _decomposition(question: Question) -> list[Mapping[str, str]]:
    """Returns MuSiQue's sub-questions; other sources may have another field of this name."""
    steps = question.extra.get("decomposition")
    if not isinstance(steps, list):
        return []
    complete = all(isinstance(s, Mapping) and {"question", "answer"} <= s.keys() for s in steps)
    return steps if complete else []


def _is_named(question: Question, passage: Passage) -> int:
    title = _bare_title(passage.title).lower()
    return int(title != "" and title in question.question.lower())


def _holds_answer(question: Question, passage: Passage) -> int:
    return int(any(holds_phrase(passage.text, answer) for answer in stated_answers(question)))


def _bare_title(title: str) -> str:
    """Returns a title without its disambiguation: "The Island (2006 film)"."""
    return re.sub(r"\s*\([^)]*\)$", "", title)


def _queries(question: Question, passage: Passage, place: int) -> tuple[str, ...]:
    title = passage.title
    key_words = _key_words(question, title)
    wordings = [title, _bare_title(title), f"{title} {' '.join(key_words[:_KEY_WORDS])}".strip()]
    # A title that the question does not name cannot be guessed at the first hop, so the first
    # query is then the question itself.
    if place == 0 and not _is_named(question, passage):
        wordings = [question.question, " ".join(key_words)]
    queries = [query for query in (_sub_question(question, place), *wordings) if query]
    return tuple(dict.fromkeys(queries)) or (question.question,)


def _sub_question(question: Question, place: int) -> str | None:
    """Returns MuSiQue's sub-question at this place, with earlier answers filled in."""
    steps = _decomposition(question)
    if place >= len(steps):
        return None
    text = str(steps[place]["question"]).replace(" >> ", " ")
    for number, step in enumerate(steps[:place], start=1):
        text = text.replace(f"#{number}", str(step["answer"]))
    return None if "#" in text else " ".join(text.split())


def best_sentence(question: Question, passage: Passage, later: Sequence[Passage]) -> str:
    """Returns the sentence of `passage` that answers most of the question.

    The answer weighs most, then the name of a passage of a later hop, then words shared with the
    question. Copied verbatim, at most `MAX_EVIDENCE_CHARS` long (cut between words).
    """
    links = [_bare_title(p.title) for p in later]
    keep = [*links, *stated_answers(question)] if not later else links
    return _shortened(without_tags(_best(question, passage, later)[1]), keep)


def _best(question: Question, passage: Passage, later: Sequence[Passage]) -> tuple[float, str]:
    """Returns the score of the best sentence, and the sentence; see `best_sentence`."""
    links = [_bare_title(p.title) for p in later]
    key_words = {w.lower() for w in _key_words(question, "")}

    def score(sentence: str) -> float:
        words = {w.lower() for w in _WORD.findall(sentence)} - _STOP_WORDS
        shared = len(words & key_words)
        answer = any(holds_phrase(sentence, a) for a in stated_answers(question))
        link = any(holds_phrase(sentence, title) for title in links)
        return shared + _ANSWER_WEIGHT * (answer and not later) + _NEXT_TITLE_WEIGHT * link

    sentences = _SENTENCE_END.split(" ".join(passage.text.split()))
    best = max(sentences, key=score)
    return score(best), best


def _shortened(sentence: str, keep: Sequence[str]) -> str:
    """Returns at most `MAX_EVIDENCE_CHARS` of a sentence, around the first phrase worth keeping."""
    if len(sentence) <= MAX_EVIDENCE_CHARS:
        return sentence
    places = (sentence.lower().find(phrase.lower()) for phrase in keep)
    middle = next((place for place in places if place >= 0), 0)
    start = min(max(0, middle - MAX_EVIDENCE_CHARS // 2), len(sentence) - MAX_EVIDENCE_CHARS)
    piece = sentence[start : start + MAX_EVIDENCE_CHARS]
    # Drop words that the cut tore.
    piece = piece.partition(" ")[2] if start else piece
    return piece.rpartition(" ")[0] if start + MAX_EVIDENCE_CHARS < len(sentence) else piece
