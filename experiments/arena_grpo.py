"""`make study STUDY=arena-grpo`: does outcome RL improve the embedded policy on atlas?

ARENA's recipe (`configs/arena.yaml`): one warm start, then GRPO with its rewards from two seeds.
Start and policies answer the same 600 questions of the part `test` once, greedily.
"""

from experiments.arms import START, Arm, evaluate_arms
from experiments.report import Claim, write_report
from runs.workflow import Lab

NAME = "arena-grpo"

TEST = {"evaluation.part": "test", "evaluation.limit": 600}

ARMS = (Arm(START), Arm("grpo", "train-grpo"))

CLAIMS = (Claim("grpo", START, primary=True),)


def arena_grpo(lab: Lab) -> None:
    """Run the study (see module)."""
    started = lab.branchwise("warm-start")
    for done in evaluate_arms(lab, ARMS, TEST, started):
        write_report(lab, NAME, done, CLAIMS)
