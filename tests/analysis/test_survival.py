"""Label survival: shares of pairs whose order fresh rollouts confirm or reverse."""

from typing import Any

import pytest
from sample_records import a_pair, a_rollout

from branchwise.analysis.survival import Fresh, Worth, order_verdict, sample_pairs, survival_table
from branchwise.runs.recipe import Recipe
from branchwise.types import FreshRollouts, Pair, Rollout


def worth(**settings: Any) -> Worth:
    """Returns the function that gives the value of a rollout under SPRE."""
    return Recipe.model_validate({"name": "x", "rewards": settings}).scheme.rollout_value


NO_COST = worth(alpha=1.0)


def rolled(node: int, *rollouts: Rollout, tree: str = "t1") -> FreshRollouts:
    return FreshRollouts(
        tree_id=tree,
        question_id="q1",
        source="atlas",
        seed=0,
        node_id=node,
        temperature=0.8,
        rollouts=rollouts,
    )


def by_node(*rows: FreshRollouts) -> Fresh:
    return {(row.tree_id, row.node_id): row for row in rows}


RIGHT, WRONG = a_rollout("Paris"), a_rollout("Rome")


@pytest.mark.parametrize(
    ("chosen", "rejected", "verdict"),
    [
        ((RIGHT, RIGHT, WRONG), (RIGHT, WRONG, WRONG), "kept"),
        ((RIGHT, WRONG, WRONG), (RIGHT, RIGHT), "reversed"),
        ((RIGHT, WRONG), (WRONG, RIGHT), "tied"),
        ((a_rollout(None), RIGHT), (RIGHT, RIGHT, RIGHT, WRONG), "kept"),
    ],
)
def test_verdict_depends_on_the_mean_of_fresh_rollouts(
    chosen: tuple[Rollout, ...], rejected: tuple[Rollout, ...], verdict: str
) -> None:
    fresh = by_node(rolled(1, *chosen), rolled(2, *rejected))
    assert order_verdict(a_pair(), fresh, NO_COST) == verdict


def test_an_invalid_rejected_side_is_worth_0() -> None:
    fresh = by_node(rolled(1, RIGHT, WRONG), rolled(2, a_rollout(None)))
    assert order_verdict(a_pair(rejected_action="invalid"), fresh, NO_COST) == "kept"
    assert order_verdict(a_pair(), fresh, NO_COST) is None


def test_alpha_decides_between_long_and_short_trajectories() -> None:
    long, short = a_rollout("Paris", steps=6), a_rollout("Paris", steps=2)
    fresh = by_node(rolled(1, short), rolled(2, long))
    assert order_verdict(a_pair(), fresh, worth(alpha=0.9)) == "kept"
    assert order_verdict(a_pair(), fresh, NO_COST) == "tied"
    late = by_node(rolled(1, short, WRONG), rolled(2, long))
    assert order_verdict(a_pair(), late, worth(alpha=0.5)) == "kept"
    assert order_verdict(a_pair(), late, NO_COST) == "reversed"


def test_forced_answers_count_only_if_label_forced_is_set() -> None:
    forced = a_rollout("Paris", forced=True)
    fresh = by_node(rolled(1, WRONG), rolled(2, forced, WRONG))
    assert order_verdict(a_pair(), fresh, NO_COST) == "reversed"
    unforced = worth(alpha=1.0, label_forced=False)
    assert order_verdict(a_pair(), fresh, unforced) == "tied"
    assert order_verdict(a_pair(), by_node(rolled(1, RIGHT), rolled(2, forced)), unforced) is None
    assert order_verdict(a_pair(), by_node(rolled(1, RIGHT)), NO_COST) is None


def pairs_of(tree: str, question: str, n: int, **changes: Any) -> list[Pair]:
    return [
        a_pair(tree_id=tree, question_id=question, chosen_node=2 * i, rejected_node=2 * i + 1)
        .model_copy(update=changes)
        for i in range(n)
    ]  # fmt: skip


def outcome(pair: Pair, *, kept: bool | None) -> list[FreshRollouts]:
    """Returns rollouts that confirm a pair (True), reverse it (False), or tie (None)."""
    first, second = {True: (RIGHT, WRONG), False: (WRONG, RIGHT), None: (RIGHT, RIGHT)}[kept]
    return [
        rolled(pair.chosen_node, first, tree=pair.tree_id),
        rolled(pair.rejected_node, second, tree=pair.tree_id),
    ]


def test_survival_table_has_shares_with_intervals_over_questions() -> None:
    # All four orders of the first question are kept, none of the second; two more pairs tie.
    pairs = [*pairs_of("a", "q1", 4), *pairs_of("b", "q2", 4), *pairs_of("c", "q3", 2)]
    truth = [True] * 4 + [False] * 4 + [None] * 2
    rows = [row for p, kept in zip(pairs, truth, strict=True) for row in outcome(p, kept=kept)]
    (row,) = survival_table(pairs, by_node(*rows), NO_COST)
    assert (row.group, row.pairs, row.questions) == ("all", 10, 3)
    assert (row.kept, row.reversed, row.tied) == (0.4, 0.4, 0.2)
    assert (row.decided, row.luck) == (0.5, 0.4)
    assert row.decided_interval == (0.0, 1.0), "eight pairs, but only two questions"
    assert (row.label_gap, row.fresh_gap) == (pytest.approx(0.5), pytest.approx(0.0))
    assert row.fresh_gap_interval == (-1.0, 1.0), "a sample may hold only one of the two questions"
    assert survival_table(pairs, by_node(*rows[:2]), NO_COST)[0].pairs == 1, (
        "the others lack rollouts"
    )


def test_the_interval_of_a_single_question_stays_wide() -> None:
    pairs = pairs_of("a", "q1", 20)
    rows = [row for pair in pairs for row in outcome(pair, kept=True)]
    (row,) = survival_table(pairs, by_node(*rows), NO_COST)
    assert row.kept == 1
    assert row.kept_interval[0] < 0.5


def test_groups_are_in_ascending_order() -> None:
    pairs = [
        pair
        for n, outcomes in enumerate((12, 1, 3, 5))
        for pair in pairs_of(
            f"t{n}", f"q{n}", 1, chosen_outcomes=outcomes, rejected_outcomes=20, depth=n * 4 + 1
        )
    ]
    fresh = by_node(*(row for pair in pairs for row in outcome(pair, kept=True)))
    groups = [row.group for row in survival_table(pairs, fresh, NO_COST, "outcomes")]
    assert groups == ["1", "2–3", "4–7", "8 or more"]
    depths = [int(row.group) for row in survival_table(pairs, fresh, NO_COST, "depth")]
    assert depths == [1, 5, 9, 13]
    own = survival_table(pairs, fresh, NO_COST, lambda pair: pair.source)
    assert [(row.group, row.pairs) for row in own] == [("atlas", 4)]


def test_a_sample_takes_pairs_evenly_from_questions() -> None:
    pairs = [*pairs_of("a", "q1", 50), *pairs_of("b", "q2", 2), *pairs_of("c", "q3", 1)]
    sample = sample_pairs(pairs, 5)
    counts = [sum(p.question_id == q for p in sample) for q in ("q1", "q2", "q3")]
    assert counts == [2, 2, 1]
    assert sample_pairs(list(reversed(pairs)), 9)[:5] == sample, "a larger sample contains it"
    assert sample_pairs(pairs, 5, seed=1) != sample
    assert len(sample_pairs(pairs, 99)) == 53
