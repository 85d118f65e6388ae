"""Shared parts of EVO-RAG's studies: the trees, the relabellings and the arms.

The study that runs first grows the trees of `configs/evo-studies.yaml`; the others reuse them. An
arm relabels the trees, keeps the pairs that `pairs:` allows, and trains on them by DPO, starting
from the warm start that grew the trees. All policies answer the first `evaluation.limit` questions
of split `test` once, greedily, in the recipe's precision. Some of these questions are unanswerable.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from branchwise.base import Sheet
from branchwise.runs import Recipe, StudyRunner

from ..arms import Arm, EvaluatedArm, evaluate_arms
from ..study_tables import Claim, write_report
from .labellings import agreement_sheet, leaning_sheet
from .savings import Counted, saving_sheet, saving_size, savings

TEST = {"evaluation.split": "test"}
FEWEST = 20
"""Minimum number of pairs: with fewer, the optimiser takes only two steps and learns nothing."""

TIME_DYNAMIC = {"rewards.schedule": "time-dynamic", "rewards.stage": "refinement"}


def dpo(name: str, paper: str = "", **rewards: object) -> Arm:
    """Returns an arm that learns by DPO from the trees as the given rewards label them.

    Args:
        rewards: Settings of `rewards:`; the others default to time-dynamic Refinement.
    """
    settings = {f"rewards.{key}": value for key, value in rewards.items()}
    return Arm(name, "train-dpo", {**TIME_DYNAMIC, **settings}, min_pairs=FEWEST, paper=paper)


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


def about(recipe: Recipe, results: Sequence[EvaluatedArm]) -> str:
    """Describes the data of all tables of a study."""
    seeds = max(len(result.predictions) for result in results)
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


@dataclass(frozen=True)
class RewardStudy:
    """A study of reward settings, called with its runner.

    Attributes:
        measure: What is saved: "searches" or "steps".
        more_sheets: Returns further tables, and may write further files; called after each seed.
    """

    name: str
    arms: tuple[Arm, ...]
    claims: tuple[Claim, ...]
    saved: tuple[Claim, ...]
    measure: Counted = "searches"
    note: str = ""
    more_sheets: Callable[[StudyRunner, Sequence[EvaluatedArm]], Sequence[Sheet]] = (
        lambda runner, results: ()
    )

    def __call__(self, runner: StudyRunner) -> None:
        """Runs the study."""
        runner.run_stage("annotate")
        for results in evaluate_arms(runner, self.arms, TEST):
            if not runner.context.dry_run:
                self._write(runner, results)

    def _write(self, runner: StudyRunner, results: Sequence[EvaluatedArm]) -> None:
        saved = savings(results, self.saved, runner.recipe.seed, self.measure)
        sheets = [
            saving_sheet(saved, self.measure),
            *self.more_sheets(runner, results),
            leaning_sheet(runner.context.run, self.arms),
            agreement_sheet(runner.context.run, self.arms, self.claims),
        ]
        notes = (about(runner.recipe, results), self.note, saving_size(saved, self.measure))
        note = " ".join(filter(None, notes))
        write_report(runner, self.name, results, self.claims, more=sheets, about=note)
