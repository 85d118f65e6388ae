"""`make study STUDY=atlas-dpo`: does process DPO make the embedded policy better?

One set of trees over questions of the part `train`. On the part `dev` the recipe is chosen among
`CANDIDATES` (one seed, Q8_0). Then every arm is trained with every seed and asked the same
questions of the part `test` once, greedily, in F16. Primary comparisons: process DPO against the
warm start and against SFT on the chosen steps (Holm over both).

ReasonRAG's table 3 in kind: base, SFT, process DPO; and the controls that it lacks.
"""

from dataclasses import replace

from pipelines.studies.arms import START, Arm, Examined, examined
from pipelines.studies.lab import Lab
from pipelines.studies.report import Claim, write_report

DEV = {"evaluation.part": "dev", "evaluation.limit": 200, "policy.precision": "q8_0"}
TEST = {"evaluation.part": "test", "evaluation.limit": 600, "policy.precision": "f16"}

RIGHT_WRONG = {"pairs.min_gap": 0.3}
"""More than a difference of a few steps comes to: right answers against wrong ones."""

CANDIDATES: tuple[Arm, ...] = (
    Arm("all-pairs", "train-dpo", {}, {"lr": 1e-4, "epochs": 2}),
    Arm("right-wrong", "train-dpo", RIGHT_WRONG, {"lr": 1e-4, "epochs": 2}),
    Arm("one-kind", "train-dpo", {**RIGHT_WRONG, "pairs.same_action": True}, {"lr": 1e-4}),
)
"""Recipes tried on `dev`, in this order; each is a process-DPO arm."""

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


def atlas_dpo(lab: Lab) -> None:
    """Run the study (see module)."""
    lab.branchwise("annotate")
    dpo = chosen_on_dev(lab)
    for done in examined(lab, arms(dpo), TEST):
        write_report(lab, "atlas-dpo", done, CLAIMS)


def arms(dpo: Arm) -> tuple[Arm, ...]:
    """What is compared with process DPO as chosen on dev."""
    sft = {name: dpo.training[name] for name in ("epochs", "batch_size") if name in dpo.training}
    return (
        Arm(START),
        Arm("same-again", draw=1),
        replace(dpo, name="dpo", label=dpo.name, models=dpo.name),
        Arm("sft", "train-sft", dpo.pairs, sft, label=dpo.name),
        replace(dpo, name="shuffled", pairs={**dpo.pairs, "pairs.order": "shuffled"}),
        replace(dpo, name="answers", pairs={**dpo.pairs, "pairs.actions": ["answer"]}),
    )


def chosen_on_dev(lab: Lab) -> Arm:
    """The candidate with the highest EM on dev (F1 breaks ties; the earlier one the rest)."""
    if len(CANDIDATES) == 1:
        return CANDIDATES[0]
    first = replace(lab, seeds=lab.seeds[:1])
    (tried,) = examined(first, CANDIDATES, DEV)
    best = max(tried, key=_dev_score)
    lab.call.say(f"study: chosen on dev: {best.arm.name} (EM, F1: {_dev_score(best)})")
    return best.arm


def _dev_score(done: Examined) -> tuple[float, float]:
    row = done.evaluations[0].get("policies", [{}])[0] if done.evaluations else {}
    return round(row.get("em") or 0.0, 4), round(row.get("f1") or 0.0, 4)
