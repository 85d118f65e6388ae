"""`make data`: reads questions and corpus, and counts them."""

from collections import Counter
from collections.abc import Mapping

from branchwise.base import NONE, Sheet, terminal_safe
from branchwise.rewards import is_ambiguous, normalise
from branchwise.runs import StageContext, StageResult, open_data
from branchwise.sources import DataSettings
from branchwise.types import Event, EventKind, counts_by_text

SMALL_SET = 400
"""Questions below which a split of a file is too small to learn from or to compare policies."""


def data(context: StageContext) -> StageResult:
    """Reads everything the recipe names, and counts it."""
    material = open_data(context.recipe)
    by_kind = Counter((q.source, q.split, q.type, q.hops) for q in material.questions)
    rows = tuple(
        tuple(NONE if part is None else str(part) for part in (*kind, count))
        for kind, count in sorted(by_kind.items(), key=str)
    )
    head = ("source", "split", "type", "hops", "n")
    context.console.print(Sheet(f"{len(material.questions)} questions", head, rows, names=3).text())
    examples = ", ".join(
        f"{terminal_safe(p.id)} ({terminal_safe(p.title)})" for p in material.passages[:3]
    )
    context.log(f"{len(material.passages):,} passages, such as {examples}")
    for line in material.describe_notes():
        context.log(line)
    if advice := _small_set_advice(context.recipe.data, material.notes):
        context.log(advice)
    golds = [gold for q in material.questions for gold in q.answers]
    if ambiguous := list(dict.fromkeys(filter(is_ambiguous, golds))):
        shown = ", ".join(
            f'"{terminal_safe(gold)}" and "{terminal_safe(normalise(gold))}"'
            for gold in ambiguous[:3]
        )
        context.log(
            f"warning: {len(ambiguous)} gold answers that SQuAD's exact match takes for others, "
            f"such as {shown}; rewards compare by `rewards.comparison: "
            f"{context.recipe.rewards.comparison}`"
        )
    totals = {"questions": len(material.questions), "passages": len(material.passages)}
    notes = {**counts_by_text(material.notes), "ambiguous gold answers": len(ambiguous)}
    return StageResult({**totals, "notes": notes})


def _small_set_advice(settings: DataSettings, notes: Mapping[Event, int]) -> str | None:
    """Returns how to use a small file whole, if its questions are divided into splits."""
    read = notes.get(Event(EventKind.QUESTION_READ, source=settings.source), 0)
    if settings.source == "atlas" or settings.mix or not settings.split or read >= SMALL_SET:
        return None
    return (
        f"note: {read} questions are few for splits. To annotate all of them, set data.split: null "
        "(--set data.split=null), and evaluate on another file with evaluation.set"
    )
