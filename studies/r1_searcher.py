"""`make study STUDY=r1-searcher`: does R1-Searcher's reward help, and does its first stage?

One warm start, then both stages with the paper's rewards; the same without the penalty of stage 2
for a wrong format, which on atlas costs more than right answers earn (as in the recipe); and the
paper's stage 2 alone for as many batches, where its instruct model stopped searching (section 4.2).
The curves of trainings with both stages are those of the second.
"""

from functools import partial

from branchwise.runs import Study

from .arms import START, Arm
from .outcome_rl import compare_rewards
from .study_tables import Claim

TRAINER = "train-grpo"
BATCHES = 20
"""Batches of both stages in the recipe."""

PENALTY = {"rewards.format_failure": -2.0}
"""The paper's (equation 3)."""

ARMS = (
    Arm(START),
    Arm("two-stages", TRAINER, pairs=PENALTY),
    Arm("no-penalty", TRAINER),
    Arm(
        "stage-2-alone",
        TRAINER,
        pairs={**PENALTY, "rewards.stage": 2},
        training={"stages": [], "batches": BATCHES},
    ),
)

CLAIMS = (
    Claim("two-stages", START, primary=True),
    Claim("two-stages", "stage-2-alone"),
    Claim("no-penalty", "two-stages"),
    Claim("no-penalty", START),
    Claim("stage-2-alone", START),
)

CURVES = ("f1", "format_ok", "valid_searches", "policy_tokens")

STUDY = Study(
    partial(compare_rewards, name="r1-searcher", arms=ARMS, claims=CLAIMS, curves=CURVES),
    recipe="r1-searcher",
    seeds=(0,),
)
