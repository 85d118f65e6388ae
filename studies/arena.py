"""`make study STUDY=arena`: does ARENA's reward improve the policy, and what do its choices add?

One warm start, then GRPO as in `configs/arena.yaml`; without the bonus for a reply that is right in
everything (table 10); and with the KL estimator k3 instead of k2 (appendix B).
"""

from functools import partial

from branchwise.runs import Study

from .arms import START, Arm
from .outcome_rl import compare_rewards
from .study_tables import Claim

TRAINER = "train-grpo"
NO_BONUS = {"rewards.components": ["format", "accuracy", "relevance"]}

ARMS = (
    Arm(START),
    Arm("grpo", TRAINER),
    Arm("no-bonus", TRAINER, pairs=NO_BONUS),
    Arm("k3", TRAINER, training={"kl": "k3"}),
)

CLAIMS = (
    Claim("grpo", START, primary=True),
    Claim("grpo", "no-bonus"),
    Claim("grpo", "k3"),
)

CURVES = ("em", "format_ok", "reward/relevance", "kl")

STUDY = Study(
    partial(compare_rewards, name="arena", arms=ARMS, claims=CLAIMS, curves=CURVES),
    recipe="arena",
    seeds=(0,),
)
