"""`make study STUDY=search`: tree search against independent chains at equal generated tokens.

Both use the same questions, policy, child temperature and estimator, and stop at the same number of
tokens per question (`mcts.max_output_tokens`). A tree spends tokens on rollouts, chains spend them
on more chains. The study compares the pairs kept, the share whose order survives 8 fresh rollouts
per side, and the gain of process DPO on split `dev`. Chains have a sibling run folder.
"""

from dataclasses import dataclass

from branchwise.analysis import SurvivalRow, sample_pairs, survival_table
from branchwise.base import NONE, Sheet, number, percent
from branchwise.runs import Study, StudyRunner, existing_run, pairs_of, with_sibling_run
from branchwise.storage import question_ids

from .arms import START, Arm, EvaluatedArm, evaluate_arms, tree_totals
from .fresh_rollouts import draw_fresh_rollouts
from .study_tables import Claim, write_report

EVALUATION = {"evaluation.split": "dev", "evaluation.limit": 300, "policy.precision": "q8_0"}
JUDGED_PAIRS = 100
"""Pairs per kind of search whose order is checked with fresh rollouts."""


@dataclass(frozen=True)
class Kind:
    """One way of searching, and its results."""

    name: str
    runner: StudyRunner
    dpo: EvaluatedArm
    start: EvaluatedArm


def search(runner: StudyRunner) -> None:
    """Runs the study (see module)."""
    kinds = []
    for name in ("tree", "chains"):
        kind_runner = with_sibling_run(runner, name)
        kind_runner.run_stage("annotate", settings={"mcts.kind": name})
        dpo = Arm(f"dpo-{name}", "train-dpo")
        for results in evaluate_arms(kind_runner, (Arm(START), dpo), EVALUATION):
            start, trained = results
        kinds.append(Kind(name, kind_runner, trained, start))
    if runner.context.dry_run:
        return
    sheet = Sheet("Searches", HEAD, tuple(_row(kind) for kind in kinds))
    arms = {kinds[0].start.arm.name: kinds[0].start, **{k.dpo.arm.name: k.dpo for k in kinds}}
    claims = (
        Claim("dpo-tree", "dpo-chains", primary=True),
        Claim("dpo-tree", START),
        Claim("dpo-chains", START),
    )
    write_report(runner, "search", list(arms.values()), claims, more=[sheet])


HEAD = (
    "search", "questions", "tokens per question", "pairs", "questions with a pair", "judged",
    "order kept % [95 %]", "reversed %", "tied %",
)  # fmt: skip


def _row(kind: Kind) -> tuple[str, ...]:
    run = existing_run(kind.runner.context.run)
    pairs = pairs_of(run, "pairs")
    sample = sample_pairs(pairs, JUDGED_PAIRS, run.recipe.seed)
    rolled = draw_fresh_rollouts(kind.runner, run, sample)
    survival = survival_table(sample, rolled.fresh, run.recipe.scheme.rollout_value)
    questions = len(question_ids(run.folder, "trees"))
    tokens = tree_totals(kind.runner).output_tokens
    return (
        kind.name,
        str(questions),
        number(tokens / max(questions, 1), 0),
        str(len(pairs)),
        str(len({pair.question_id for pair in pairs})),
        *_survival_cells(survival[0] if survival else None),
    )


def _survival_cells(row: SurvivalRow | None) -> tuple[str, ...]:
    if row is None:
        return ("0", NONE, NONE, NONE)
    low, high = (percent(bound) for bound in row.kept_interval)
    kept_share = f"{percent(row.kept)} [{low}, {high}]"
    return (str(row.pairs), kept_share, percent(row.reversed), percent(row.tied))


STUDY = Study(search)
