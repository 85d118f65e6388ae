"""`make data` and `make index`: read questions and corpus, build the index, and say what is there.

Both are also done on demand by every stage that needs them.
"""

from collections import Counter

from rich.table import Table
from rich.text import Text

from runs.assemble import open_data, open_index
from runs.stage import Invocation, Outcome
from storage.inert import inert


def data(call: Invocation) -> Outcome:
    """Read everything the recipe names, and count it."""
    found = open_data(call.recipe)
    by_kind = Counter((q.source, q.split, q.type, q.hops) for q in found.questions)
    table = Table(title=f"{len(found.questions)} questions", title_justify="left", box=None)
    for column in ("source", "part", "type", "hops", "n"):
        table.add_column(column)
    for kind, count in sorted(by_kind.items(), key=str):
        table.add_row(*(Text("–" if part is None else inert(str(part))) for part in (*kind, count)))
    call.console.print(table)
    call.say(f"{len(found.passages):,} passages")
    for note, count in sorted(found.notes.items()):
        call.say(f"{note}: {count}")
    totals = {"questions": len(found.questions), "passages": len(found.passages)}
    return Outcome({**totals, "notes": dict(found.notes)})


def index(call: Invocation) -> Outcome:
    """Build the index of the recipe's corpus, or find it built."""
    found = open_data(call.recipe)
    named = f"{call.recipe.retrieval.kind} index of {len(found.passages):,} passages"
    if call.dry_run:
        call.say(f"index: the {named} would be built, or found built")
        return Outcome({"passages": len(found.passages), "dry_run": True})
    retriever = open_index(call.recipe, found.passages, call.say)
    call.say(f"{named} is ready")
    return Outcome({"passages": len(found.passages), "index_digest": retriever.digest})
