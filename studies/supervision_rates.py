"""`make study STUDY=supervision-rates`: learning rates and budgets of the study `supervision`.

Every kind of arm is trained with the same learning rates, on questions and trees of a seed that
`supervision` does not use, and answers 200 questions of `dev`. The table also shows how many
batches of an arm's rollouts generate as many tokens as the trees. `--arms` with arms on rollouts
alone grows no trees, and leaves this column empty.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from branchwise.base import Sheet, known_mean, number, percent
from branchwise.runs import Study, StudyRunner, with_sibling_run, write_sheets
from branchwise.storage import Totals
from branchwise.training import read_metrics

from .arms import START, Arm, EvaluatedArm, run_arm, tree_totals
from .supervision import (
    ON_ROLLOUTS,
    ON_TREES,
    ONE_PASS,
    SEARCHING,
    replication,
    search_r1_start,
    sum_over_rollouts,
    training_runner,
)

NAME = "supervision-rates"
DEV = {"evaluation.split": "dev", "evaluation.limit": 200}
RATES = (1e-4, 3e-4, 1e-3)
"""Learning rates that every kind of arm tries."""
KINDS = (
    *ON_TREES,
    *(
        replace(arm, training={**arm.training, "batches": ONE_PASS})
        for arm in (*ON_ROLLOUTS, SEARCHING[-1])
    ),
)


def supervision_rates(runner: StudyRunner) -> None:
    """Runs the study (see module)."""
    seed = runner.seeds[0]
    seed_runner = replication(runner, seed)
    kinds = [kind for kind in KINDS if runner.wants(kind.name)]
    grows = any(kind in ON_TREES for kind in kinds)
    if grows:
        seed_runner.run_stage("annotate")
    start = EvaluatedArm(Arm(START))
    run_arm(seed_runner, start, seed, DEV)
    results = [start]
    search_r1 = search_r1_start(runner) if KINDS[-1] in kinds else runner
    for kind in kinds:
        for rate in RATES:
            training = {**kind.training, "lr": rate}
            arm_runner = training_runner(seed_runner, kind, search_r1)
            if arm_runner is not seed_runner:  # rollouts of the other rate would be replayed
                arm_runner = with_sibling_run(arm_runner, f"{rate:g}")
            results.append(
                EvaluatedArm(replace(kind, name=f"{kind.name}-{rate:g}", training=training))
            )
            run_arm(arm_runner, results[-1], seed, DEV)
            report(runner, results, seed_runner if grows else None)


def report(runner: StudyRunner, results: Sequence[EvaluatedArm], grown: StudyRunner | None) -> None:
    """Writes the table of all trials; `grown` has the trees, if any were grown."""
    if runner.context.dry_run:
        return
    trees = tree_totals(grown) if grown else None
    rows = []
    for result in results:
        scored = [row for rows in result.predictions.values() for row in rows]
        em, f1 = (known_mean(getattr(row, name) for row in scored) for name in ("em", "f1"))
        batches = number(batches_of(result, trees) if trees else None, 1)
        rows.append((result.arm.name, percent(em), percent(f1), batches))
    head = ("arm and learning rate", "EM", "F1", "batches with the tokens of the trees")
    write_sheets(runner, NAME, [Sheet("Trials on dev (per cent)", head, tuple(rows))])


def batches_of(result: EvaluatedArm, trees: Totals) -> float | None:
    """Returns the number of batches whose rollouts generate as many tokens as the trees.

    Rollouts are taken to be as long as in this arm's training; None if it drew none.
    """
    curves = [read_metrics(Path(totals["model"])) for totals in result.trainings if totals]
    tokens = sum(sum_over_rollouts(curve, "policy_tokens") for curve in curves)
    return trees.output_tokens * sum(map(len, curves)) / tokens if tokens else None


STUDY = Study(
    supervision_rates,
    recipe="supervision",
    seeds=(9,),
    arms=tuple(kind.name for kind in KINDS),
)
