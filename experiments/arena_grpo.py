"""`make study STUDY=arena-grpo`: does outcome RL improve the embedded policy on atlas?

ARENA's recipe (`configs/arena.yaml`): one warm start, then GRPO with its rewards from two seeds.
Start and policies answer the same 600 questions of the split `test` once, greedily.
"""

from experiments.arms import START, Arm, evaluate_arms
from experiments.report import Claim, write_report
from runs.studies.study_runner import Study, StudyRunner

NAME = "arena-grpo"

TEST = {"evaluation.split": "test", "evaluation.limit": 600}

ARMS = (Arm(START), Arm("grpo", "train-grpo"))

CLAIMS = (Claim("grpo", START, primary=True),)


def arena_grpo(runner: StudyRunner) -> None:
    """Runs the study (see module)."""
    runner.run_stage("warm-start")
    for done in evaluate_arms(runner, ARMS, TEST):
        write_report(runner, NAME, done, CLAIMS)


STUDY = Study(arena_grpo, recipe="arena", seeds=(0, 1))
