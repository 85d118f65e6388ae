"""`make data` and `make index`: read questions and corpus, count them, build the index.

Both are also done on demand by every stage that needs them.
"""

from collections import Counter

from analysis.table import NONE, Sheet
from base.terminal_escape import inert
from runs.factories import open_data, open_index
from runs.stage import StageContext, StageResult


def data(context: StageContext) -> StageResult:
    """Reads everything the recipe names, and counts it."""
    found = open_data(context.recipe)
    by_kind = Counter((q.source, q.split, q.type, q.hops) for q in found.questions)
    rows = tuple(
        tuple(NONE if part is None else str(part) for part in (*kind, count))
        for kind, count in sorted(by_kind.items(), key=str)
    )
    head = ("source", "split", "type", "hops", "n")
    context.console.print(Sheet(f"{len(found.questions)} questions", head, rows, names=3).text())
    examples = ", ".join(f"{inert(one.id)} ({inert(one.title)})" for one in found.passages[:3])
    context.log(f"{len(found.passages):,} passages, such as {examples}")
    for line in found.describe_notes():
        context.log(line)
    totals = {"questions": len(found.questions), "passages": len(found.passages)}
    return StageResult({**totals, "notes": dict(found.notes)})


def index(context: StageContext) -> StageResult:
    """Builds the index of the recipe's corpus if it does not exist."""
    found = open_data(context.recipe)
    named = f"{context.recipe.retrieval.kind} index of {len(found.passages):,} passages"
    if context.dry_run:
        context.log(f"index: the {named} would be built, or found built")
        return StageResult({"passages": len(found.passages), "dry_run": True})
    retriever = open_index(context.recipe, found.passages, context.log)
    context.log(f"{named} is ready")
    return StageResult({"passages": len(found.passages), "index_digest": retriever.digest})
