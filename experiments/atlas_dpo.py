"""`make study STUDY=atlas-dpo`: does process DPO make the embedded policy better?

The study grows one set of trees over questions of the split `train`. The recipes of DPO and SFT
were chosen by hand on the split `dev` (docs/results/log.md). If either has several candidates, the
study evaluates them on `dev` (one seed, Q8_0). It then trains every arm with every seed, and
evaluates all of them on the same `test` questions once, greedily, in F16. The primary comparisons
are process DPO against the warm start and against SFT on the chosen steps (Holm over both).

The arms follow ReasonRAG's table 3 (base, SFT, process DPO) and add the controls that it lacks.
"""

from collections.abc import Sequence
from dataclasses import replace

from experiments.arms import START, Arm, EvaluatedArm, evaluate_arms
from experiments.report import Claim, write_report
from runs.studies.study_runner import Study, StudyRunner

DEV = {"evaluation.split": "dev", "evaluation.limit": 200, "policy.precision": "q8_0"}
TEST = {"evaluation.split": "test", "evaluation.limit": 600, "policy.precision": "f16"}

RIGHT_WRONG = {"rewards.alpha": 1.0, "pairs.min_gap": 0.5, "pairs.same_action": True}
"""Prefer right answers to wrong ones, regardless of length; compare only steps of one kind."""

BATCHES = {"batch_size": 8, "micro_batch": 8}

CANDIDATES: tuple[Arm, ...] = (
    Arm("anchored", "train-dpo", RIGHT_WRONG, {"lr": 2e-4, "sft_weight": 1.0, **BATCHES}),
)
"""Recipes of process DPO to try on `dev`; docs/results/log.md lists the earlier ones."""

SFT_CANDIDATES: tuple[Arm, ...] = (Arm("sft", "train-sft", RIGHT_WRONG, {"lr": 2e-4, **BATCHES}),)
"""The same settings for SFT on the chosen steps."""

CLAIMS = (
    Claim("dpo", START, primary=True),
    Claim("dpo", "sft", primary=True),
    Claim("sft", START),
    Claim("dpo", "shuffled"),
    Claim("dpo", "answers"),
    Claim("shuffled", START),
    Claim("answers", START),
    Claim("same-again", START),
)


def atlas_dpo(runner: StudyRunner) -> None:
    """Runs the study (see module)."""
    runner.run_stage("annotate")
    dpo, sft = chosen_on_dev(runner, CANDIDATES), chosen_on_dev(runner, SFT_CANDIDATES)
    for done in evaluate_arms(runner, arms(dpo, sft), TEST):
        write_report(runner, "atlas-dpo", done, CLAIMS)


def arms(dpo: Arm, sft: Arm) -> tuple[Arm, ...]:
    """Returns the arms of the study, given the two recipes chosen on dev."""
    return (
        Arm(START),
        Arm("same-again", draw=1),
        replace(dpo, name="dpo", label=dpo.name, models=dpo.name),
        replace(sft, name="sft", label=sft.name, models=sft.name),
        replace(dpo, name="shuffled", pairs={**dpo.pairs, "pairs.order": "shuffled"}),
        replace(dpo, name="answers", pairs={**dpo.pairs, "pairs.actions": ["answer"]}),
    )


def chosen_on_dev(runner: StudyRunner, candidates: Sequence[Arm]) -> Arm:
    """Returns the candidate with the highest EM on dev; F1 breaks ties, then the order of the
    candidates.
    """
    if len(candidates) == 1:
        return candidates[0]
    first = replace(runner, seeds=runner.seeds[:1])
    (tried,) = evaluate_arms(first, candidates, DEV)
    best = max(tried, key=_dev_score)
    runner.context.log(f"study: chosen on dev: {best.arm.name} (EM, F1: {_dev_score(best)})")
    return best.arm


def _dev_score(done: EvaluatedArm) -> tuple[float, float]:
    row = done.evaluations[0].get("policies", [{}])[0] if done.evaluations else {}
    return round(row.get("em") or 0.0, 4), round(row.get("f1") or 0.0, 4)


STUDY = Study(atlas_dpo)
