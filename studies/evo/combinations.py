"""`make study STUDY=evo-combinations`: which rewards together? (EVO-RAG table 6, with searches.)

Each arm trains by DPO on the shared trees, labelled with some of the rewards: time-dynamic
Refinement, one step from the warm start. The combinations are Best-2 (backtrack, answer), Best-3
(and overlap), Exploration (retrieval, overlap), Efficiency (backtrack, step), and all seven. The
primary comparison is all seven against the start. The study also draws figure 4: according to the
paper, all rewards together lower median and variance of the step count.

The paper's combinations differ by 2.6 points of EM and by a third of the steps at most. 200
questions detect such a difference in steps, but not in EM.
"""

from collections.abc import Sequence

from branchwise.base import Sheet
from branchwise.rewards import query_similarity
from branchwise.runs import Study, StudyRunner

from ..arms import START, Arm, EvaluatedArm
from ..study_tables import Claim
from .distributions import distribution_sheet, distributions, draw_distributions
from .shared import FULL, RewardStudy, dpo, full

NAME = "evo-combinations"

ARMS = (
    Arm(START, paper="EM 53.1, F1 66.7, 8.2 steps"),
    dpo("best-2", "EM 56.2, F1 70.0, 11.3 steps", components=["backtrack", "answer"]),
    dpo("best-3", "EM 56.9, F1 70.6, 10.1 steps", components=["backtrack", "answer", "overlap"]),
    dpo("exploration", "EM 55.0, F1 69.1, 13.4 steps", components=["retrieval", "overlap"]),
    dpo("efficiency", "EM 55.4, F1 68.8, 9.0 steps", components=["backtrack", "step"]),
    full(FULL.name, "EM 57.6, F1 71.5, 10.4 steps"),
)
"""Paper: Qwen3-8B; its steps are the "average retrieval length"."""

CLAIMS = (
    Claim("full", START, primary=True, paper="+4.5"),
    Claim("best-2", START, paper="+3.1"),
    Claim("best-3", START, paper="+3.8"),
    Claim("exploration", START, paper="+1.9"),
    Claim("efficiency", START, paper="+2.3"),
    Claim("full", "best-3", paper="+0.7"),
    Claim("full", "exploration", paper="+2.6"),
    Claim("full", "efficiency", paper="+2.2"),
)

SAVED = (
    Claim("best-2", START, paper="−38 % (8.2 → 11.3)"),
    Claim("best-3", START, paper="−23 % (8.2 → 10.1)"),
    Claim("exploration", START, paper="−63 % (8.2 → 13.4)"),
    Claim("efficiency", START, paper="−10 % (8.2 → 9.0)"),
    Claim("full", START, paper="−27 % (8.2 → 10.4)"),
    Claim("best-3", "best-2", paper="11 % (11.3 → 10.1)"),
    Claim("full", "exploration", paper="22 % (13.4 → 10.4)"),
)


def draw_spread(runner: StudyRunner, results: Sequence[EvaluatedArm]) -> tuple[Sheet, ...]:
    """Draws the distributions of steps and searches (figure 4); returns their table."""
    spread = distributions(results, query_similarity())
    draw_distributions(spread, runner.folder / f"{NAME}-distributions.svg")
    return (distribution_sheet(spread),)


evo_combinations = RewardStudy(NAME, ARMS, CLAIMS, SAVED, more_sheets=draw_spread)
STUDY = Study(evo_combinations, recipe="evo-studies", seeds=(0,))
