"""`make study STUDY=labels RUN=datasets/atlas-dpo`: which labels do fresh rollouts confirm?

The study reads a finished run. It samples 200 pairs of siblings, regardless of their labels, and
rolls each side out 8 times at the policy's temperature, and once greedily. Every estimator then
labels the same siblings, at α = 0.9 and 1, and the tables give the share of orders that survive: by
estimator, number of outcomes and gap. There are two more labels besides the tree's:

- `greedy`: one greedy completion from each sibling, as with `mcts.rollout_temperature: 0`.
- `judge`: a simulated judge, because no available model can judge. It sees the mean F1 that the
  tree found below a step, with noise of SD 0.2, and its score is worth α^depth (ReasonRAG eq. 6).
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from branchwise.analysis import Fresh, SurvivalRow, fresh_value, sample_pairs, survival_table
from branchwise.annotation import PairSettings
from branchwise.base import NONE, ConfigError, Sheet, number, percent
from branchwise.rewards import Estimator, Label, Spre, SpreSettings, label_tree
from branchwise.runs import (
    Relabeller,
    Run,
    Study,
    StudyRunner,
    existing_run,
    stored_trees,
    write_sheets,
)
from branchwise.types import Pair, TreeNode

from .fresh_rollouts import draw_fresh_rollouts
from .study_tables import Bar, draw

SAMPLE, ROLLOUTS = 200, 8
ALPHAS = (0.9, 1.0)
LEAST_GAP = 0.01
"""Smallest difference of rewards from which an estimator makes a pair."""
JUDGE_NOISE = 0.2
"""SD of the simulated judge's error, on scores in [0, 1]."""
ESTIMATORS: tuple[Estimator | Literal["greedy"], ...] = (
    "monte_carlo",
    "tree",
    "rollout",
    "judge",
    "greedy",
)

Values = Mapping[tuple[str, int], tuple[float, int]]
"""(tree_id, node_id) → reward in [0, 1], and the number of distinct outcomes that support it."""


def labels(runner: StudyRunner) -> None:
    """Runs the study (see module)."""
    run = existing_run(runner.context.run)
    spre = run.recipe.rewards
    if not isinstance(spre, SpreSettings):
        raise ConfigError(f"study labels: rewards.scheme is `{spre.scheme}`; use a run of spre")
    sample = sample_pairs(comparisons(run), SAMPLE, run.recipe.seed)
    runner.context.log(f"study: {len(sample)} sibling pairs, {ROLLOUTS} fresh rollouts per side")
    if runner.context.dry_run:
        return
    fresh = draw_fresh_rollouts(runner, run, sample, ROLLOUTS).fresh
    greedy = draw_fresh_rollouts(runner, run, sample, 1, 0.0).fresh
    answers = {pair.tree_id: pair.answers for pair in sample}
    trees = [tree.nodes for tree in stored_trees(run, only=answers)]
    survivals = []
    for alpha in ALPHAS:
        rewards = spre.model_copy(update={"alpha": alpha})
        scheme = Spre(run.recipe.model_copy(update={"rewards": rewards}))
        values = Estimates(trees, answers, scheme, greedy)
        for name in ESTIMATORS:
            ordered = list(in_order(sample, values.by_estimator(name)))
            survivals += [
                EstimatorSurvival(name, alpha, facet, row)
                for facet in (None, "outcomes", "gap")
                for row in survival_table(ordered, fresh, scheme.rollout_value, facet)
            ]
    sheets = [sheet(survivals, None), sheet(survivals, "outcomes"), sheet(survivals, "gap")]
    axis = "pairs whose order survives, % of untied pairs (95 % interval)"
    draw(list(bars(survivals)), runner.folder / "labels.svg", axis, no_effect=0.5)
    write_sheets(runner, "labels", sheets)


def comparisons(run: Run) -> list[Pair]:
    """Returns all pairs of siblings that any estimator could compare; their order is arbitrary."""
    any_pair = PairSettings(min_gap=0.0, min_outcomes=1)
    relabeller = Relabeller(run.recipe.model_copy(update={"pairs": any_pair}), ties=True)
    return [pair for tree in stored_trees(run) for pair in relabeller.label(tree)[1]]


@dataclass(frozen=True)
class Estimates:
    """Estimates of every estimator for the nodes of some trees, at one α."""

    trees: Sequence[Sequence[TreeNode]]
    answers: Mapping[str, Sequence[str]]
    scheme: Spre
    greedy: Fresh

    def by_estimator(self, estimator: Estimator | Literal["greedy"]) -> Values:
        """Returns rewards by node; nodes without a reward are left out."""
        if estimator == "greedy":
            return dict(self._greedy())
        if estimator == "judge":
            return dict(self._judged())
        return {
            (node.tree_id, node.node_id): (label.reward, label.n_outcomes)
            for node, label in self._labelled(estimator)
            if label.reward is not None
        }

    def _labelled(self, estimator: Estimator) -> Iterator[tuple[TreeNode, Label]]:
        for tree in self.trees:
            answers = self.answers[tree[0].tree_id]
            labels = label_tree(tree, answers, self.scheme.settings, estimator)
            yield from zip(tree, labels, strict=True)

    def _greedy(self) -> Iterator[tuple[tuple[str, int], tuple[float, int]]]:
        for key, rolled in self.greedy.items():
            golds = self.answers.get(key[0], ())
            value = fresh_value(rolled, golds, self.scheme.rollout_value)
            if value is not None:
                yield key, (value, 1)

    def _judged(self) -> Iterator[tuple[tuple[str, int], tuple[float, int]]]:
        """Yields the labels of a judge that errs by `JUDGE_NOISE`; its errors are the same for
        every α.
        """
        for node, label in self._labelled("monte_carlo"):
            f1 = next((c.value for c in label.components if c.name == "f1"), None)
            if f1 is not None:
                error = random.Random(f"{node.tree_id}:{node.node_id}").gauss(0, JUDGE_NOISE)
                score = min(1.0, max(0.0, f1 + error))
                yield (
                    (node.tree_id, node.node_id),
                    (score * self.scheme.settings.alpha**node.depth, label.n_outcomes),
                )


def in_order(sample: Sequence[Pair], values: Values) -> Iterator[Pair]:
    """Yields the pairs that an estimator makes of the siblings, ordered by its values."""
    for pair in sample:
        sides = [(n, values.get((pair.tree_id, n))) for n in (pair.chosen_node, pair.rejected_node)]
        valued = sorted(((value, node) for node, value in sides if value is not None), reverse=True)
        if len(valued) == 2 and valued[0][0][0] - valued[1][0][0] >= LEAST_GAP:
            (high, chosen), (low, rejected) = valued
            yield pair.model_copy(
                update={
                    "chosen_node": chosen,
                    "rejected_node": rejected,
                    "chosen_reward": high[0],
                    "rejected_reward": low[0],
                    "reward_gap": high[0] - low[0],
                    "chosen_outcomes": high[1],
                    "rejected_outcomes": low[1],
                }
            )


@dataclass(frozen=True)
class EstimatorSurvival:
    """A row of the tables."""

    estimator: str
    alpha: float
    facet: str | None
    row: SurvivalRow


def bars(survivals: Sequence[EstimatorSurvival]) -> Iterator[Bar]:
    """Returns a bar per estimator and α that have a decided pair; α = 1 is grey."""
    for survival in survivals:
        share, between = survival.row.decided, survival.row.decided_interval
        if survival.facet is None and share is not None and between is not None:
            name = f"{survival.estimator}, α = {number(survival.alpha)}"
            yield Bar(name, between[0], share, between[1], strong=survival.alpha < 1)


def sheet(survivals: Sequence[EstimatorSurvival], facet: str | None) -> Sheet:
    """Returns the survival by estimator and α, optionally split by a facet of the pairs."""
    title = "Label survival" + (f" by {facet}" if facet else "")
    head = (
        "estimator", "alpha", facet or "pairs of siblings", "pairs", "questions", "kept %", "95 %",
        "reversed %", "tied %", "kept of decided %", "gap", "gap afresh",
    )  # fmt: skip
    rows = tuple(_cells(survival) for survival in survivals if survival.facet == facet)
    return Sheet(f"{title} (8 fresh rollouts per side)", head, rows, names=3)


def _cells(survival: EstimatorSurvival) -> tuple[str, ...]:
    row = survival.row
    return (
        survival.estimator,
        number(survival.alpha),
        row.group,
        str(row.pairs),
        str(row.questions),
        percent(row.kept),
        "–".join(percent(bound) for bound in row.kept_interval),
        percent(row.reversed),
        percent(row.tied),
        NONE if row.decided is None else percent(row.decided),
        number(row.label_gap, 2),
        number(row.fresh_gap, 2),
    )


STUDY = Study(labels, seeds=(), trains=False, of_existing_run=True)
