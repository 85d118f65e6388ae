"""`make study STUDY=evo-literal`: do the schedules differ with two equations as printed?

This is `evo-schedules` with two equations read literally (EVO-RAG section 3.2). Every hit earns the
retrieval bonus, even one that was retrieved before. Every late search that has anything in common
with an earlier one counts as redundant. A search that only repeats itself then pays as long as the
bonus weighs 2.0, so Discovery teaches to continue under `two-stage`, but not under `time-dynamic`.
Schedules matter more in this reading than in any other. As in `evo-schedules`, arms learn in two
steps from one warm start.
"""

from branchwise.runs import Study

from ..arms import START, Arm
from ..study_tables import Claim
from .shared import IN_TWO_STEPS, RewardStudy, two_steps

LITERAL = {"retrieval_bonus": "any", "overlap_threshold": 0.0}

ARMS = (
    Arm(START, paper="EM 53.1, F1 66.7 (section 4.2)"),
    two_steps("two-stage-literal", "EM 55.9, F1 69.5", schedule="two-stage", **LITERAL),
    two_steps("time-dynamic-literal", "EM 57.6, F1 71.5", schedule="time-dynamic", **LITERAL),
)
"""Paper: Qwen3-8B, table 4."""

CLAIMS = (
    Claim("time-dynamic-literal", "two-stage-literal", primary=True, paper="+1.7 (Qwen)"),
    Claim("time-dynamic-literal", START),
    Claim("two-stage-literal", START),
)

SAVED = (
    Claim("time-dynamic-literal", "two-stage-literal", paper="15 % (11.5 → 9.8 steps)"),
    Claim("time-dynamic-literal", START),
    Claim("two-stage-literal", START),
)


evo_literal = RewardStudy("evo-literal", ARMS, CLAIMS, SAVED, note=IN_TWO_STEPS)
STUDY = Study(evo_literal, recipe="evo-studies", seeds=(0, 1))
