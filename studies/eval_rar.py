"""`make study STUDY=eval-rar`: does the reward for evaluations help, or does it teach to copy?

One warm start, then GRPO as in `configs/eval-rar.yaml`, and with the reward for the answer alone
(table 2). A passage that is copied into an evaluation contains the answer more often than a
sentence about it, so the copied share of the evaluations is reported next to EM.
"""

from functools import partial

from branchwise.runs import Study

from .arms import START, Arm
from .outcome_rl import compare_rewards
from .study_tables import Claim

TRAINER = "train-grpo"

ARMS = (
    Arm(START),
    Arm("grpo", TRAINER),
    Arm("answer-alone", TRAINER, pairs={"rewards.reward": "em"}),
)

CLAIMS = (
    Claim("grpo", "answer-alone", primary=True),
    Claim("grpo", START),
    Claim("answer-alone", START),
)

CURVES = ("em", "copied", "policy_tokens", "retrievals")

STUDY = Study(
    partial(compare_rewards, name="eval-rar", arms=ARMS, claims=CLAIMS, curves=CURVES),
    recipe="eval-rar",
    seeds=(0, 1),
)
