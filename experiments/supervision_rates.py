"""`make study STUDY=supervision-rates`: learning rates and budgets of the study `supervision`.

Every kind of arm is trained with the same learning rates, on the questions of the study's first
seed, and answers 200 questions of `dev`. The table also tells how many batches of rollouts generate
as many tokens as the trees of these questions.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from analysis.table import Sheet, number, percent
from experiments.arms import START, Arm, EvaluatedArm, run_arm
from experiments.report import known_mean
from experiments.supervision import ON_TREES, ONE_PASS, PLUS, SEARCHING, replication, searching
from runs.studies.output import write_sheets
from runs.studies.study_runner import StageTotals, Study, StudyRunner
from storage.records import Prediction

NAME = "supervision-rates"
DEV = {"evaluation.split": "dev", "evaluation.limit": 200}
RATES = (1e-4, 3e-4)
"""Learning rates that every kind of arm tries."""
ONCE = {"batches": ONE_PASS}
KINDS = (
    *ON_TREES,
    Arm("grpo", "train-grpo", training=ONCE),
    Arm("reinforce++", "train-grpo", training={**ONCE, **PLUS}),
    replace(SEARCHING[-1], training=ONCE),
)


def supervision_rates(runner: StudyRunner) -> None:
    """Runs the study (see module)."""
    seed = runner.seeds[0]
    own = replication(runner, seed)
    trees = own.run_stage("annotate")
    start = EvaluatedArm(Arm(START))
    run_arm(own, start, seed, DEV)
    done = [start]
    for kind in KINDS:
        if not runner.wants(kind.name):
            continue
        asked = searching(own) if kind is KINDS[-1] else own
        for rate in RATES:
            arm = replace(
                kind, name=f"{kind.name}-{rate:g}", training={**kind.training, "lr": rate}
            )
            done.append(EvaluatedArm(arm))
            run_arm(asked, done[-1], seed, DEV)
            report(runner, done, trees)


def report(runner: StudyRunner, done: Sequence[EvaluatedArm], trees: StageTotals) -> None:
    """Writes the table of all trials, and the number of batches that cost as much as the trees."""
    if runner.context.dry_run:
        return
    rows = []
    for one in done:
        asked = [row for rows in one.predictions.values() for row in rows]
        em, f1 = (known_mean(getattr(row, name) for row in asked) for name in ("em", "f1"))
        rows.append((one.arm.name, percent(em), percent(f1)))
    batches = batches_of(runner, done[0], trees)
    write_sheets(
        runner,
        NAME,
        [Sheet("Trials on dev (per cent)", ("arm and learning rate", "EM", "F1"), tuple(rows))],
        f"{number(batches, 1)} batches of rollouts generate as many tokens as the trees.",
    )


def batches_of(runner: StudyRunner, start: EvaluatedArm, trees: StageTotals) -> float:
    """Returns the number of batches whose rollouts generate as many tokens as the trees.

    Rollouts are taken to be as long as the start's answers to `dev`.
    """
    rows = [row for rows in start.predictions.values() for row in rows]
    tokens = fmean(row.output_tokens for row in rows if isinstance(row, Prediction))
    grpo = runner.recipe.training.grpo
    drawn: float = trees["output_tokens"] / tokens
    return drawn / (grpo.batch_questions * grpo.group_size)


STUDY = Study(
    supervision_rates,
    recipe="supervision",
    seeds=(0,),
    arms=tuple(kind.name for kind in KINDS),
)
