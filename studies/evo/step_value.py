"""`make study STUDY=evo-step-value`: how much should a step cost? (EVO-RAG section 3.2.)

The study runs DPO on the shared trees with a raw step value of −0.5, −1 and −2: all seven rewards,
time-dynamic Refinement, one step from the warm start. The paper took −1, which loses 0.3 EM against
−0.5 and saves 1.1 steps. The primary comparison is the EM of −1 against −0.5, to be read with the
table of steps.

The step penalty weighs 0.05 to 0.10. The answer weighs up to 1, and a pair needs a gap of 0.2. So
most pairs are the same under all three values, and the policies may be too.

200 questions detect a saving of about 4 % of the steps and a difference of 6 points of EM, not the
paper's 0.3.
"""

from branchwise.runs import Study

from ..arms import START, Arm
from ..study_tables import Claim
from .shared import RewardStudy, dpo, full

ARMS = (
    Arm(START),
    dpo("step-0.5", step_value=-0.5),
    full("step-1", "EM −0.3, steps −1.1"),
    dpo("step-2", step_value=-2.0),
)
"""Paper: differences from −0.5."""

CLAIMS = (
    Claim("step-1", "step-0.5", primary=True, paper="−0.3"),
    Claim("step-2", "step-1"),
    Claim("step-0.5", START),
    Claim("step-1", START),
    Claim("step-2", START),
)

SAVED = (
    Claim("step-1", "step-0.5", paper="1.1 steps"),
    Claim("step-2", "step-1"),
    Claim("step-2", "step-0.5"),
)


evo_step_value = RewardStudy("evo-step-value", ARMS, CLAIMS, SAVED, measure="steps")
STUDY = Study(evo_step_value, recipe="evo-studies", seeds=(0, 1))
