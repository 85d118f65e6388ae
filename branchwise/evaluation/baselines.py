"""Baselines of an evaluation: how they begin, and which questions they can take."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from branchwise.agent import TERMINAL, Action, State, Step
from branchwise.base import Registry
from branchwise.retrieval import Retriever
from branchwise.rewards import normalise
from branchwise.types import Passage, Question, RetrievedPassage

from .answering import Begin

Answers = Callable[["Material"], "Baseline"]
"""Returns how a baseline answers with the material of an evaluation."""

BASELINES: Registry["Answers"] = Registry("baseline")
"""Baselines by name."""


def register_baseline(name: str) -> Callable[[Answers], Answers]:
    """Function decorator: adds a baseline.

    Args:
        name: Name in `evaluation.baselines` and in tables.
    """
    return BASELINES.named(name)


@dataclass(frozen=True)
class Material:
    """Inputs of a baseline.

    Attributes:
        corpus: Passages by id.
        retriever: Finds passages, `top_k` per search.
        unevaluated: Loads the questions of split `train` that are not evaluated.
    """

    corpus: Mapping[str, Passage]
    retriever: Retriever
    top_k: int
    unevaluated: Callable[[], Iterable[Question]]


@dataclass(frozen=True)
class Baseline:
    """How a baseline answers, in one turn of the protocol `reading`.

    Attributes:
        begin: Returns the state that a question starts from; by default the protocol's root. A
            terminal state is the answer.
        can_be_asked: Whether the baseline can take a question; others are left out.
        left_out: Why questions are left out, as a relative clause.
        asks_model: False if every question starts from its answer.
        deciding: Settings that decide the answers, apart from model and prompts; part of the
            evaluation's name.
    """

    begin: Begin | None = None
    can_be_asked: Callable[[Question], bool] = lambda question: True
    left_out: str = ""
    asks_model: bool = True
    deciding: Mapping[str, Any] = field(default_factory=dict)


@register_baseline("closed-book")
def closed_book(material: Material) -> Baseline:
    """Answers from the model's own knowledge: the prompt has no passages."""
    return Baseline()


@register_baseline("one-shot")
def one_shot(material: Material) -> Baseline:
    """Reads the passages that the question retrieves; this search does not count as a step."""

    async def begin(question: Question) -> State:
        passages = await material.retriever.search(question.question, material.top_k)
        return State(question.question, given=tuple(passages))

    return Baseline(begin)


@register_baseline("oracle")
def oracle(material: Material) -> Baseline:
    """Reads the gold passages, as after a perfect search."""

    async def begin(question: Question) -> State:
        return State(question.question, given=supporting(question, material.corpus))

    return Baseline(
        begin,
        can_be_asked=lambda question: bool(supporting(question, material.corpus)),
        left_out="whose gold passages are unknown",
    )


def supporting(question: Question, corpus: Mapping[str, Passage]) -> tuple[RetrievedPassage, ...]:
    """Returns a question's gold passages, or else the paragraphs marked as supporting.

    This is the only way from what a question knows of its answer into a prompt, and only the
    oracle takes it. Empty if neither is known.

    Args:
        question: `supporting_ids` are resolved against the corpus.
        corpus: Passages by id.
    """
    gold = [corpus[name] for name in question.supporting_ids if name in corpus]
    if gold:
        return tuple(RetrievedPassage(**passage.model_dump(), score=1.0) for passage in gold)
    return tuple(
        RetrievedPassage(id=p.id or f"{question.id}#{n}", title=p.title, text=p.text, score=1.0)
        for n, p in enumerate(question.paragraphs)
        if p.is_supporting and p.text.strip()
    )


@register_baseline("majority")
def majority(material: Material) -> Baseline:
    """Gives the most frequent answer of a source to all its questions, without a model."""
    answers = majority_answers(material.unevaluated())

    async def begin(question: Question) -> State:
        text = answers[question.source]
        answer = Step("reasoning", text, Action("answer", text))
        return State(question.question).after(answer, TERMINAL)

    return Baseline(
        begin,
        can_be_asked=lambda question: question.source in answers,
        left_out="whose source has no others in its split `train`",
        asks_model=False,
        deciding={"answers": answers},
    )


def majority_answers(questions: Iterable[Question]) -> dict[str, str]:
    """Returns, by source, the normalised answer that is right most often; ties go by name.

    Args:
        questions: Questions that are not evaluated. Each counts once per distinct gold answer.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for question in questions:
        counts[question.source].update({normalise(gold) for gold in question.answers} - {""})
    return {
        source: min(answers, key=lambda answer: (-answers[answer], answer))
        for source, answers in sorted(counts.items())
        if answers
    }
