"""`make study STUDY=evo-single`: agents that know one reward each (EVO-RAG table 5).

For each of five rewards: a single-head reward model on siblings that this reward alone orders, the
shared trees' pairs ordered by its score, and an agent trained on them by DPO, a fifth of the
questions kept out. The paper's accuracy is the agent's, "in selecting preferable retrieval actions
according to the learned preference model": the share of the held-out pairs whose chosen step has
gained more than the rejected one. Before training it is 50 %.

What differs from the paper: it does not say which loss its table has, nor which pairs it evaluates;
its losses lie above ln 2 = 0.693, which is what an agent has that has learned nothing. Ours is that
of DPO. A reward model learns from siblings whose returns differ at all (`LEAST_GAP`), not by 0.3:
the step penalty weighs 0.05 to 0.10, and would be left with next to nothing. A reward that too few
siblings differ in has a row that says so.

The pairs of an agent are a state's best and worst by the model, the three widest of a question:
they may differ in their actions alone, and then every agent orders all of them. Read its accuracy
next to what a rule on actions orders (`labellings.by_actions`).

Time on two cores: trees 10 minutes, once for all studies; then 54 with one seed, the default: the
reward models 5, scoring all steps 8, five trainings of about 130 pairs and as many evaluations of
200 questions 4 each. Some 50 held-out pairs of a dozen questions tell 70 % from 50 %, not 55 % from
54 %; `--seeds 0 1 2` holds out other questions with each, and takes an hour and a quarter more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from analysis.table import NONE, Sheet, number, percent
from experiments.arms import START, Arm, EvaluatedArm, evaluate_arms, mean_of
from experiments.evo import TEST, TIME_DYNAMIC, about, dpo
from experiments.labellings import leaning_sheet
from experiments.report import PAPER, Claim, write_report
from rewards.heads import TOTAL
from rewards.settings import RewardName
from runs.factories import model_folder
from runs.study_runner import StageTotals, StudyRunner
from storage.records import Prediction

NAME = "evo-single"

PAPERS: Mapping[RewardName, str] = {
    "backtrack": "70.3 %, loss 0.913",
    "refusal": "60.6 %, loss 1.018",
    "retrieval": "55.2 %, loss 1.089",
    "step": "54.2 %, loss 1.184",
    "overlap": "54.4 %, loss 1.015",
}
"""The five rewards of table 5, and what it says of them."""

LEAST_GAP = 0.01
"""Difference of two returns from which a reward model learns their order: any, up to rounding."""
FEWEST = 50
"""Siblings in order: fewer teach a reward model nothing that a fifth of them could measure."""
HOLDOUT = 0.2


@dataclass(frozen=True)
class Preference:
    """The reward model of one reward.

    Attributes:
        siblings: pairs that the reward orders; None in a dry run.
        totals: Totals of its training; empty if there are too few pairs.
        arm: the agent that is trained by it; None in a dry run.
    """

    reward: RewardName
    siblings: int | None
    totals: StageTotals = field(default_factory=dict)
    arm: Arm | None = None


def evo_single(runner: StudyRunner) -> None:
    """Runs the study (see module)."""
    grown = runner.branchwise("annotate")
    learned = [preference(runner, reward, grown) for reward in PAPERS]
    arms = (Arm(START), *(one.arm for one in learned if one.arm))
    claims = [Claim(arm.name, START) for arm in arms[1:]]
    for done in evaluate_arms(runner, arms, TEST, grown):
        if not runner.context.dry_run:
            more = [single_sheet(learned, done), leaning_sheet(runner.context.run, arms)]
            write_report(runner, NAME, done, claims, more=more, about=about(runner.recipe, done))


def preference(runner: StudyRunner, reward: RewardName, grown: StageTotals) -> Preference:
    """Trains a reward model on one reward, if enough siblings differ in it.

    Args:
        grown: totals of the trees.
    """
    settings = {
        **TIME_DYNAMIC,
        "rewards.components": [reward],
        "training.reward_model.heads": "single",
        "training.reward_model.min_gap": LEAST_GAP,
    }
    counted = runner.branchwise("train-rm", "--dry-run", settings=settings, after=grown)
    siblings = counted.get("heads", {}).get(TOTAL)
    if siblings is not None and siblings < FEWEST:
        runner.context.log(
            f"{runner.title}: {reward} is left out: {siblings} siblings differ in it"
        )
        return Preference(reward, siblings)
    name = f"prefers-{reward}"
    totals = runner.branchwise("train-rm", "--name", name, settings=settings, after=grown)
    agent = dpo(f"only-{reward}", components=[reward])
    folder = str(model_folder(runner.context.run, name))
    scored = {**agent.pairs, "pairs.score": "reward_model", "reward_model": folder}
    arm = replace(agent, pairs=scored, training={"holdout": HOLDOUT}, made_of=totals)
    return Preference(reward, siblings, totals, arm)


HEAD = (
    "reward", "siblings in order", "model's accuracy %", "model's loss", "length only %",
    "pairs", "held out", "agent's accuracy %", "agent's loss", "EM", "searches", "left out",
)  # fmt: skip


def single_sheet(learned: Sequence[Preference], done: Sequence[EvaluatedArm]) -> Sheet:
    """Returns a row per reward: its reward model on questions kept out, and its agent."""
    agents = {one.arm.name: one for one in done}
    rows = tuple(_row(one, agents.get(one.arm.name) if one.arm else None) for one in learned)
    sheet = Sheet("Single rewards (agents: means over seeds)", HEAD, rows)
    return sheet.with_column(PAPER, [PAPERS[one.reward] for one in learned])


def _row(learned: Preference, agent: EvaluatedArm | None) -> tuple[str, ...]:
    head: Mapping[str, Any] = learned.totals.get("heads", {}).get(TOTAL, {})
    trainings = agent.trainings if agent else []
    rows = [row for asked in agent.predictions.values() for row in asked] if agent else []
    em = [row.em for row in rows if row.em is not None]
    searches = [row.searches for row in rows if isinstance(row, Prediction)]
    too_few = f"{learned.siblings} siblings, of {FEWEST} at least"
    return (
        learned.reward,
        NONE if learned.siblings is None else str(learned.siblings),
        percent(head.get("accuracy")),
        number(head.get("loss"), 3),
        percent(head.get("length_only")),
        number(mean_of(trainings, "examples"), 0),
        number(mean_of(trainings, "holdout_pairs"), 0),
        percent(mean_of(trainings, "holdout_accuracy")),
        number(mean_of(trainings, "holdout_loss"), 3),
        percent(sum(em) / len(em) if em else None),
        number(sum(searches) / len(searches) if searches else None, 2),
        (agent.left_out or "") if agent else too_few,
    )
