"""`make study STUDY=reading-curve`: what do examples of reading buy?

Trains the warm start of `configs/general.yaml` on the same traces and a growing number of reading
examples. Every policy answers held-out questions in the full protocol: about passages of the first
reading set (split `test`), where one search and one reading suffice, and about the multi-hop sets
(split `dev`). The baseline `oracle` asks it for the multi-hop answers with the gold passages.
For another model, set `training.warm_start.base`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from branchwise.analysis import Scored
from branchwise.base import Sheet, known_mean, percent
from branchwise.runs import (
    Recipe,
    Study,
    StudyRunner,
    model_folder,
    svg,
    with_sibling_run,
    write_sheets,
)

from .arms import predictions_of

NAME = "reading-curve"
QUESTIONS = (0, 1300, 5200)
"""Reading questions that the policies learn from."""
MAX_QUESTIONS = 300
"""Most questions of each evaluation."""
ORACLE = "oracle"


@dataclass(frozen=True)
class Point:
    """A policy of the curve.

    Attributes:
        questions: Reading questions that it learned from.
        examples: All examples, those of the traces included; None in a dry run.
        passages, multi_hop, oracle: Predictions about held-out passages, on `dev`, and on `dev`
            with the gold passages.
    """

    questions: int
    examples: int | None
    passages: list[Scored]
    multi_hop: list[Scored]
    oracle: list[Scored]


def reading_curve(runner: StudyRunner) -> None:
    """Runs the study (see module)."""
    points = []
    for point in trained_points(runner):
        points.append(point)
        if not runner.context.dry_run:
            write_curve(runner, points)


def trained_points(runner: StudyRunner) -> Iterator[Point]:
    """Trains and evaluates one policy after the other, the cheapest first."""
    passages = with_passages(runner)
    for number in QUESTIONS:
        name = f"reading-{number}"
        warm_start = runner.run_stage("warm-start", "--name", name, settings=examples(number))
        model = str(model_folder(runner.context.run, name))
        evaluation = {"evaluation.limit": MAX_QUESTIONS, "evaluation.policies": {name: model}}
        read = predictions(passages, evaluation, name)
        oracle = {"evaluation.baselines": [ORACLE], "evaluation.baseline_model": model}
        hops = predictions(runner, {**evaluation, **on_dev(runner.recipe), **oracle}, name, ORACLE)
        yield Point(number, warm_start.get("examples"), read[name], hops[name], hops[ORACLE])


def examples(questions: int) -> dict[str, object]:
    """Returns the settings of a warm start with this number of reading questions."""
    block = "training.warm_start.reading"
    return {f"{block}.questions": questions} if questions else {block: None}


def with_passages(runner: StudyRunner) -> StudyRunner:
    """Returns a runner whose data is the first reading set, in a run folder of its own."""
    reading = runner.recipe.training.warm_start.reading
    assert reading is not None, "the recipe of this study teaches reading"
    passage_runner = with_sibling_run(runner, "passages")
    data: dict[str, object] = {
        "data.mix": [],
        "data.source": reading.sets[0].source,
        "data.questions": reading.sets[0].questions,
        "data.corpus": None,
        "evaluation.mix": [],
        "evaluation.split": "test",
    }
    if passage_runner.context.dry_run:
        return passage_runner
    return replace(
        passage_runner, context=replace(passage_runner.context, recipe=runner.recipe_with(data))
    )


def on_dev(recipe: Recipe) -> dict[str, object]:
    """Returns the settings of an evaluation on split `dev` of the recipe's test sets."""
    sets = [test_set.model_copy(update={"split": "dev"}) for test_set in recipe.evaluation.mix]
    return {"evaluation.mix": [test_set.model_dump(mode="json") for test_set in sets]}


def predictions(
    runner: StudyRunner, settings: dict[str, object], *names: str
) -> dict[str, list[Scored]]:
    """Evaluates policies and baselines; returns their predictions by name."""
    evaluated = runner.run_stage("eval", settings=settings)
    return {name: predictions_of(runner, name, evaluated, settings) for name in names}


def write_curve(runner: StudyRunner, points: Sequence[Point]) -> None:
    """Writes the table and the plot of the points so far."""
    curves = {
        "held-out passages": [em(point.passages) for point in points],
        "multi-hop": [em(point.multi_hop) for point in points],
        "multi-hop, not guessable": [
            em([row for row in point.multi_hop if row.guessable is False]) for point in points
        ],
        "multi-hop, gold passages given": [em(point.oracle) for point in points],
    }
    counts = ((f"{point.questions:,}", f"{point.examples:,}") for point in points)
    shares = zip(*(map(percent, curve) for curve in curves.values()), strict=True)
    rows = tuple((*count, *share) for count, share in zip(counts, shares, strict=True))
    head = ("reading questions", "examples in all", *curves)
    with svg(runner.folder / f"{NAME}.svg", 1, 6, 4) as (panel,):
        for name, curve in curves.items():
            panel.plot([p.questions for p in points], [100 * x for x in curve], "o-", label=name)
        panel.set_xlabel("reading questions")
        panel.set_ylabel("EM, points")
        panel.legend()
    write_sheets(runner, NAME, [Sheet("EM by reading questions (%)", head, rows)])


def em(rows: Sequence[Scored]) -> float:
    """Returns the mean EM; questions without an answer do not count."""
    return known_mean(row.em for row in rows) or 0.0


STUDY = Study(reading_curve, recipe="general", seeds=())
