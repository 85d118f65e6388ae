"""Shared parts of EVO-RAG's studies: the trees, the relabellings and the arms.

The study that runs first grows the trees of `configs/evo-studies.yaml`; the others reuse them. An
arm relabels the trees, keeps the pairs that `pairs:` allows, and trains on them by DPO, starting
from the warm start that grew the trees. All policies answer the first `evaluation.limit` questions
of split `test` once, greedily, in the recipe's precision. Some of these questions are unanswerable.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from experiments.arms import Arm, EvaluatedArm
from runs.recipe import Recipe

TEST = {"evaluation.split": "test"}
FEWEST = 20
"""Minimum number of pairs: with fewer, the optimiser takes only two steps and learns nothing."""

TIME_DYNAMIC = {"rewards.schedule": "time-dynamic", "rewards.stage": "refinement"}


def dpo(name: str, paper: str = "", **rewards: object) -> Arm:
    """Returns an arm that learns by DPO from the trees as the given rewards label them.

    Args:
        name: Name of the arm.
        paper: Result of the arm in the paper.
        rewards: Settings of `rewards:`; the others default to time-dynamic Refinement.
    """
    named = {f"rewards.{key}": value for key, value in rewards.items()}
    return Arm(name, "train-dpo", {**TIME_DYNAMIC, **named}, min_pairs=FEWEST, paper=paper)


def two_steps(name: str, paper: str = "", *, schedule: str, **rewards: object) -> Arm:
    """Returns an arm that learns a schedule as in the curriculum: Discovery, then Refinement.

    Refinement starts from the policy that Discovery trained. Both steps use the same trees, so the
    second step is off-policy.
    """
    discovery = dpo(f"discovery-{name}", "", schedule=schedule, stage="discovery", **rewards)
    refinement = dpo(name, paper, schedule=schedule, **rewards)
    return replace(refinement, before=discovery, training={"allow_off_policy_pairs": True})


IN_TWO_STEPS = (
    "All arms except the start learn in two steps, with one pass over the pairs of each. Pairs, "
    "steps and seconds are sums over both steps; margin and accuracy are from the second."
)
"""Note on `two_steps` for the table of arms."""


FULL = dpo("full")
"""All seven rewards, time-dynamic, Refinement: trained once for all studies that compare it."""


def full(name: str, paper: str = "") -> Arm:
    """Returns `FULL` under the name that it has in a study."""
    return replace(FULL, name=name, label=FULL.name, models=FULL.name, paper=paper)


def about(recipe: Recipe, done: Sequence[EvaluatedArm]) -> str:
    """Describes the data of all tables of a study."""
    seeds = max(len(one.predictions) for one in done)
    return (
        f"{trees_of(recipe)} Evaluated on the first {recipe.evaluation.limit} questions of "
        f"split test, greedily, in {recipe.policy.precision}; EM and F1 are means over answerable "
        f"questions. Seeds: {seeds}. {OTHERS}"
    )


def trees_of(recipe: Recipe) -> str:
    """Describes the trees."""
    policy = Path(recipe.policy.model).name
    return f"Trees of {recipe.data.limit} questions of split train, grown by {policy}."


OTHERS = "Columns `paper` show 8B models on HotpotQA: other models, other data, other budgets."
"""Note on the paper's results for readers of the tables."""
