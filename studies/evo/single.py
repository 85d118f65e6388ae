"""`make study STUDY=evo-single`: agents that know one reward each (EVO-RAG table 5).

For each of five rewards, the study trains a single-head reward model on siblings that this reward
alone orders. The model's score orders the pairs of the shared trees, and an agent trains on these
pairs by DPO, with a fifth of the questions held out. The paper's accuracy is the agent's, "in
selecting preferable retrieval actions according to the learned preference model". Here it is the
share of held-out pairs whose chosen step has gained more than the rejected one. Before training it
is 50 %.

Differences from the paper: it does not define the loss in its table, or the pairs that it
evaluates. Its losses are above ln 2 = 0.693, the loss of an untrained agent. Ours is the DPO loss.
Our reward models learn from siblings whose returns differ at all (`LEAST_GAP`), not by 0.3: the
step penalty weighs only 0.05 to 0.10 and would have almost no siblings left. If too few siblings
differ in a reward, its row reports it as left out.

An agent's pairs are the best and the worst step of a state by the model's score, at most three per
question, with the widest gaps. They may differ only in their actions; then every agent orders all
of them. Read an agent's accuracy next to that of a rule on actions
(`labellings.action_rule_accuracy`).

About 50 held-out pairs of a dozen questions distinguish 70 % from 50 %, but not 55 % from 54 %.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from branchwise.base import NONE, Sheet, number, percent
from branchwise.rewards import TOTAL, RewardName
from branchwise.runs import StageTotals, Study, StudyRunner, model_folder
from branchwise.types import Prediction

from ..arms import START, Arm, EvaluatedArm, evaluate_arms, mean_of
from ..study_tables import PAPER, Claim, write_report
from .labellings import leaning_sheet
from .shared import TEST, TIME_DYNAMIC, about, dpo

NAME = "evo-single"

PAPERS: Mapping[RewardName, str] = {
    "backtrack": "70.3 %, loss 0.913",
    "refusal": "60.6 %, loss 1.018",
    "retrieval": "55.2 %, loss 1.089",
    "step": "54.2 %, loss 1.184",
    "overlap": "54.4 %, loss 1.015",
}
"""The five rewards of table 5, with the paper's accuracy and loss."""

LEAST_GAP = 0.01
"""Smallest difference of two returns from which a reward model learns their order: any, up to
rounding.
"""
FEWEST = 50
"""Minimum number of ordered siblings: with fewer, the fifth held out is too small to measure
accuracy.
"""
HOLDOUT = 0.2


@dataclass(frozen=True)
class Preference:
    """The reward model of one reward.

    Attributes:
        siblings: Number of pairs that the reward orders; None in a dry run.
        totals: Totals of its training; empty if there are too few pairs.
        arm: Agent that trains on its pairs; None in a dry run or if there are too few pairs.
    """

    reward: RewardName
    siblings: int | None
    totals: StageTotals = field(default_factory=dict)
    arm: Arm | None = None


def evo_single(runner: StudyRunner) -> None:
    """Runs the study (see module)."""
    runner.run_stage("annotate")
    learned = [preference(runner, reward) for reward in PAPERS]
    arms = (Arm(START), *(reward_model.arm for reward_model in learned if reward_model.arm))
    claims = [Claim(arm.name, START) for arm in arms[1:]]
    for results in evaluate_arms(runner, arms, TEST):
        if not runner.context.dry_run:
            more = [single_sheet(learned, results), leaning_sheet(runner.context.run, arms)]
            write_report(
                runner, NAME, results, claims, more=more, about=about(runner.recipe, results)
            )


def preference(runner: StudyRunner, reward: RewardName) -> Preference:
    """Trains a reward model on one reward, if enough siblings differ in it."""
    settings = {
        **TIME_DYNAMIC,
        "rewards.components": [reward],
        "training.reward_model.heads": "single",
        "training.reward_model.min_gap": LEAST_GAP,
    }
    counted = runner.run_stage("train-rm", "--dry-run", settings=settings)
    siblings = counted.get("heads", {}).get(TOTAL)
    if siblings is not None and siblings < FEWEST:
        runner.context.log(
            f"{runner.title}: {reward} is left out: only {siblings} siblings differ in it"
        )
        return Preference(reward, siblings)
    name = f"prefers-{reward}"
    totals = runner.run_stage("train-rm", "--name", name, settings=settings)
    agent = dpo(f"only-{reward}", components=[reward])
    folder = str(model_folder(runner.context.run, name))
    scored = {**agent.pairs, "pairs.score": "reward_model", "reward_model": folder}
    arm = replace(agent, pairs=scored, training={"holdout": HOLDOUT})
    return Preference(reward, siblings, totals, arm)


HEAD = (
    "reward", "siblings in order", "model's accuracy %", "model's loss", "length only %",
    "pairs", "held out", "agent's accuracy %", "agent's loss", "EM", "searches", "left out",
)  # fmt: skip


def single_sheet(learned: Sequence[Preference], results: Sequence[EvaluatedArm]) -> Sheet:
    """Returns a row per reward: its reward model on held-out questions, and its agent."""
    agents = {result.arm.name: result for result in results}
    rows = tuple(
        _row(reward_model, agents.get(reward_model.arm.name) if reward_model.arm else None)
        for reward_model in learned
    )
    sheet = Sheet("Single rewards (agents: means over seeds)", HEAD, rows)
    return sheet.with_column(PAPER, [PAPERS[reward_model.reward] for reward_model in learned])


def _row(learned: Preference, agent: EvaluatedArm | None) -> tuple[str, ...]:
    head: Mapping[str, Any] = learned.totals.get("heads", {}).get(TOTAL, {})
    trainings = agent.trainings if agent else []
    rows = [row for seed_rows in agent.predictions.values() for row in seed_rows] if agent else []
    em = [row.em for row in rows if row.em is not None]
    searches = [row.searches for row in rows if isinstance(row, Prediction)]
    too_few = f"only {learned.siblings} of at least {FEWEST} siblings"
    return (
        learned.reward,
        NONE if learned.siblings is None else str(learned.siblings),
        percent(head.get("accuracy")),
        number(head.get("loss"), 3),
        percent(head.get("length_only")),
        number(mean_of(trainings, "examples"), 0),
        number(mean_of(trainings, "holdout", "pairs"), 0),
        percent(mean_of(trainings, "holdout", "accuracy")),
        number(mean_of(trainings, "holdout", "loss"), 3),
        percent(sum(em) / len(em) if em else None),
        number(sum(searches) / len(searches) if searches else None, 2),
        (agent.left_out or "") if agent else too_few,
    )


STUDY = Study(evo_single, recipe="evo-studies", seeds=(0,))
