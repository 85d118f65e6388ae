"""What EVO-RAG's studies share: one set of trees, its relabellings, and how arms are examined.

`configs/evo-studies.yaml` grows the trees once, for whichever study comes first. An arm labels them
anew, keeps the pairs that `pairs:` allows, and trains on them by DPO from the warm start that grew
them. All policies answer the first `evaluation.limit` questions of split `test`, unanswerable
ones among them, once, greedily, in the recipe's precision.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from experiments.arms import Arm, EvaluatedArm
from runs.recipe import Recipe

TEST = {"evaluation.split": "test"}
FEWEST = 20
"""Pairs: fewer are two steps of the optimiser, and nothing is learned from them."""

TIME_DYNAMIC = {"rewards.schedule": "time-dynamic", "rewards.stage": "refinement"}


def dpo(name: str, paper: str = "", **rewards: object) -> Arm:
    """DPO on the trees as some rewards label them.

    Args:
        name: Name of the arm.
        paper: what the paper reports of it.
        rewards: settings of `rewards:`; what is not named is time-dynamic Refinement.
    """
    named = {f"rewards.{key}": value for key, value in rewards.items()}
    return Arm(name, "train-dpo", {**TIME_DYNAMIC, **named}, fewest=FEWEST, paper=paper)


def two_steps(name: str, paper: str = "", *, schedule: str, **rewards: object) -> Arm:
    """Returns a schedule learned as in the curriculum: Discovery, then Refinement from what that
    gave.

    The trees are the same in both steps, so those of the second are not its policy's own.
    """
    discovery = dpo(f"discovery-{name}", "", schedule=schedule, stage="discovery", **rewards)
    refinement = dpo(name, paper, schedule=schedule, **rewards)
    return replace(refinement, before=discovery, training={"off_policy": True})


IN_TWO_STEPS = (
    "All arms but the start learn in two steps, one pass over the pairs of each; pairs, steps and "
    "seconds are those of both, margin and accuracy of the second."
)
"""What a reader of the arms' table has to know of `two_steps`."""


FULL = dpo("full")
"""All seven rewards, time-dynamic, Refinement: trained once, whichever studies compare it."""


def full(name: str, paper: str = "") -> Arm:
    """`FULL` under the name that a study has for it."""
    return replace(FULL, name=name, label=FULL.name, models=FULL.name, paper=paper)


def about(recipe: Recipe, done: Sequence[EvaluatedArm]) -> str:
    """Describes the data behind all tables of a study of arms."""
    seeds = max(len(one.predictions) for one in done)
    return (
        f"{trees_of(recipe)} Asked: the first {recipe.evaluation.limit} questions of the part "
        f"test, greedy, in {recipe.policy.precision}; EM and F1 are over those that can be "
        f"answered. Seeds: {seeds}. {OTHERS}"
    )


def trees_of(recipe: Recipe) -> str:
    """Describes the trees."""
    policy = Path(recipe.policy.model).name
    return f"Trees of {recipe.data.limit} questions of split train, grown by {policy}."


OTHERS = "Columns `paper` are of 8B models on HotpotQA: other models, other data, other budgets."
"""What a reader of the tables has to know of the paper's figures."""
