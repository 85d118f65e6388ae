"""Majority baseline: the most frequent answer of the source."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from agent.state import TERMINAL, Action, State, Step
from evaluation.baselines import Baseline, Material
from rewards.answers import normalise
from storage.records import Question


def baseline(material: Material) -> Baseline:
    """Gives the same answer to every question of a source, without a model."""
    answers = majority_answers(material.others())

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
        source: min(found, key=lambda answer: (-found[answer], answer))
        for source, found in sorted(counts.items())
        if found
    }
