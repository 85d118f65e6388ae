"""`make study STUDY=atlas-dpo`: does process DPO make the embedded policy better?

The study grows one set of trees over questions of the split `train`. It trains every arm with every
seed, and evaluates all of them on the same `test` questions once, greedily, in F16. The recipes of
DPO and SFT were chosen on the split `dev` before (docs/results/log.md). The primary comparisons are
process DPO against the warm start and against SFT on the chosen steps (Holm over both).

The arms follow ReasonRAG's table 3 (base, SFT, process DPO) and add the controls that it lacks.
"""

from dataclasses import replace

from branchwise.runs import Study, StudyRunner

from .arms import START, Arm, evaluate_arms
from .study_tables import Claim, write_report

TEST = {"evaluation.split": "test", "evaluation.limit": 600, "policy.precision": "f16"}

RIGHT_WRONG = {"rewards.alpha": 1.0, "pairs.min_gap": 0.5, "pairs.same_action": True}
"""Prefer right answers to wrong ones, regardless of length; compare only steps of one kind."""

BATCHES = {"batch_size": 8, "micro_batch": 8}

DPO = Arm("anchored", "train-dpo", RIGHT_WRONG, {"lr": 2e-4, "sft_weight": 1.0, **BATCHES})
SFT = Arm("sft", "train-sft", RIGHT_WRONG, {"lr": 2e-4, **BATCHES})

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
    for results in evaluate_arms(runner, arms(DPO, SFT), TEST):
        write_report(runner, "atlas-dpo", results, CLAIMS)


def arms(dpo: Arm, sft: Arm) -> tuple[Arm, ...]:
    """Returns the arms of the study, given the recipes of DPO and SFT."""
    return (
        Arm(START),
        Arm("same-again", draw=1),
        replace(dpo, name="dpo", label=dpo.name, models=dpo.name),
        replace(sft, name="sft", label=sft.name, models=sft.name),
        replace(dpo, name="shuffled", pairs={**dpo.pairs, "pairs.order": "shuffled"}),
        replace(dpo, name="answers", pairs={**dpo.pairs, "pairs.actions": ["answer"]}),
    )


STUDY = Study(atlas_dpo)
