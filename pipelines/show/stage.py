"""`branchwise show WHAT`: a tree, a step or a pair of a run, in the terminal.

branchwise show --run datasets/atlas                       # the questions
branchwise show --run datasets/atlas atlas-bridge-12       # a tree, by question id
branchwise show --run datasets/atlas "capital of Slovakia" # a tree, by words of its question
branchwise show --run datasets/atlas atlas-bridge-12:7     # a step of it
branchwise show --run datasets/atlas 5f0c8a…               # a pair, by the beginning of its id
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from branchwise.base import BranchwiseError, ConfigError, Sheet
from branchwise.report import node_text, pair_text, tree_text
from branchwise.runs import Run, StageContext, StageResult, existing_run, open_data
from branchwise.storage import connect, rows_of

_LISTED = 50
"""Questions that are listed at most."""

Rows = Callable[..., list[dict[str, Any]]]
"""Returns the rows of a query on a run's views."""

What = Annotated[str, "question id or words, ID:STEP, or pair id", "?"]


def show(context: StageContext, what: What = "") -> StageResult:
    """Runs the stage (see module)."""
    run = existing_run(context.run)
    with connect(run.folder) as connection:
        return _show(context, run, what.strip(), partial(rows_of, connection))


def _show(context: StageContext, run: Run, words: str, rows: Rows) -> StageResult:
    console = context.console
    if not words:
        return _list(context, rows(_QUESTIONS + " ORDER BY question_id"))
    by_id = rows(_QUESTIONS + " AND question_id = ?", words)
    pairs = rows("SELECT * FROM pairs WHERE starts_with(pair_id, ?)", words)
    if pairs and not by_id:
        for pair in pairs:
            console.print(pair_text(pair, console.width))
        return StageResult({"pairs": [pair["pair_id"] for pair in pairs]})
    name, _, step = words.rpartition(":")
    if by_id or not name or not step.isdecimal():
        name, step = words, ""
    by_words = _QUESTIONS + " AND contains(lower(question), lower(?))"
    questions = rows(_QUESTIONS + " AND question_id = ?", name) or rows(by_words, name)
    if not questions:
        raise ConfigError(
            f"{run.folder}: found no question, step or pair {words!r}. `branchwise show --run "
            f"{run.folder}` lists the questions"
        )
    if len(questions) > 1:
        return _list(context, questions)
    (question,) = questions
    identity = question["question_id"]
    nodes = rows("SELECT * FROM trees WHERE question_id = ? ORDER BY node_id", identity)
    pairs = rows("SELECT * FROM pairs WHERE question_id = ?", identity)
    if step:
        if int(step) >= len(nodes):
            raise ConfigError(f"{identity}: no step {step}; the last one is {len(nodes) - 1}")
        console.print(node_text(nodes[int(step)], _passages(run), pairs))
    else:
        console.print(tree_text(question, nodes, pairs, min(console.width, 120)))
    return StageResult({"question": identity, "nodes": len(nodes), "pairs": len(pairs)})


_QUESTIONS = """
    SELECT question_id, question, answers,
           (SELECT count(*) FROM pairs WHERE pairs.question_id = questions.question_id) AS pairs
    FROM questions WHERE question_id IN (SELECT question_id FROM trees)"""


def _list(context: StageContext, questions: list[dict[str, Any]]) -> StageResult:
    head = ("question id", "pairs", "question")
    rows = tuple((q["question_id"], str(q["pairs"]), q["question"]) for q in questions[:_LISTED])
    context.console.print(Sheet("questions", head, rows, names=3).text())
    if len(questions) > _LISTED:
        context.log(f"{len(questions) - _LISTED} more; add words of the question, or its id")
    return StageResult({"questions": len(questions)})


def _passages(run: Run) -> dict[str, str]:
    try:
        return {passage.id: passage.text for passage in open_data(run.recipe).passages}
    except (BranchwiseError, OSError):
        return {}
