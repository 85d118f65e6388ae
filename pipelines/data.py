"""`make data` and `make index`: read questions and corpus, count them, build the index.

Both are also done on demand by every stage that needs them.
"""

from collections import Counter

from analysis.table import NONE, Sheet
from base.terminal_escape import inert
from rewards.answers import is_ambiguous, normalise
from runs.factories import open_data, open_index
from runs.stage import StageContext, StageResult


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
    examples = ", ".join(f"{inert(p.id)} ({inert(p.title)})" for p in material.passages[:3])
    context.log(f"{len(material.passages):,} passages, such as {examples}")
    for line in material.describe_notes():
        context.log(line)
    golds = [gold for q in material.questions for gold in q.answers]
    if ambiguous := list(dict.fromkeys(filter(is_ambiguous, golds))):
        shown = ", ".join(
            f'"{inert(gold)}" and "{inert(normalise(gold))}"' for gold in ambiguous[:3]
        )
        context.log(
            f"warning: {len(ambiguous)} gold answers that SQuAD's exact match takes for others, "
            f"such as {shown}; rewards compare by `rewards.comparison: "
            f"{context.recipe.rewards.comparison}`"
        )
    totals = {"questions": len(material.questions), "passages": len(material.passages)}
    notes = {**material.notes, "ambiguous gold answers": len(ambiguous)}
    return StageResult({**totals, "notes": notes})


def index(context: StageContext) -> StageResult:
    """Builds the index of the recipe's corpus if it does not exist."""
    material = open_data(context.recipe)
    named = f"{context.recipe.retrieval.kind} index of {len(material.passages):,} passages"
    if context.dry_run:
        context.log(f"index: the {named} would be built, or found built")
        return StageResult({"passages": len(material.passages), "dry_run": True})
    retriever = open_index(context.recipe, material.passages, context.log)
    context.log(f"{named} is ready")
    return StageResult({"passages": len(material.passages), "index_digest": retriever.digest})
