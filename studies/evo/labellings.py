"""Compares labellings of the same trees: the direction of their pairs, and how far two agree.

If two labellings are nearly equal, no test can distinguish the arms that learn from them,
regardless of the number of questions. Read these tables before you trust or pay for a comparison of
policies.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from branchwise.agent import is_end
from branchwise.base import Sheet, percent
from branchwise.storage import read_parts

from ..arms import Arm
from ..study_tables import Claim

PairOrder = tuple[str, int, int]
"""A pair: its tree, the preferred node, and the other."""


@dataclass(frozen=True)
class Labelling:
    """The pairs of one relabelling.

    Attributes:
        to_stop, to_go_on: Number of pairs that prefer an end to continuing, and the reverse. In the
            others both sides are of one kind.
        action_rule_accuracy: Share of pairs, in [0.5, 1], that a rule orders correctly which knows
            both actions but not their text; None without pairs.
    """

    name: str
    orders: frozenset[PairOrder]
    to_stop: int
    to_go_on: int
    action_rule_accuracy: float | None


def labelling(run: Path, name: str) -> Labelling:
    """Reads a relabelling; a missing one has an empty set of pairs."""
    columns = ["tree_id", "chosen_node", "rejected_node", "chosen_action", "rejected_action"]
    rows = read_parts(run, f"relabelled/{name}/pairs", columns).to_pylist()
    ends = [(is_end(row["chosen_action"]), is_end(row["rejected_action"])) for row in rows]
    return Labelling(
        name,
        frozenset((row["tree_id"], row["chosen_node"], row["rejected_node"]) for row in rows),
        to_stop=ends.count((True, False)),
        to_go_on=ends.count((False, True)),
        action_rule_accuracy=action_rule_accuracy(
            [(row["chosen_action"], row["rejected_action"]) for row in rows]
        ),
    )


def action_rule_accuracy(pairs: Sequence[tuple[str, str]]) -> float | None:
    """Returns the share of pairs that the best rule on actions alone orders correctly.

    The rule is fitted to these same pairs. It prefers the action that is chosen more often against
    the other one. If both sides have the same action it guesses, and is right half the time. A
    policy that does not exceed this share may have learned nothing about queries and answers.

    Returns:
        Share in [0.5, 1]; None without pairs.
    """
    if not pairs:
        return None
    counts = Counter(pairs)
    of_same_action = sum(
        count for (chosen, rejected), count in counts.items() if chosen == rejected
    )
    each_two = combinations({action for pair in pairs for action in pair}, 2)
    ordered = sum(max(counts[first, second], counts[second, first]) for first, second in each_two)
    return (ordered + of_same_action / 2) / len(pairs)


def labels_of(arms: Iterable[Arm]) -> list[str]:
    """Returns the labellings that the arms learn from, in order, without repeats."""
    return list(dict.fromkeys(label for arm in arms for label in _steps(arm)))


def leaning_sheet(run: Path, arms: Iterable[Arm]) -> Sheet:
    """Returns the direction of the pairs of every labelling, one row each."""
    labellings = [labelling(run, name) for name in labels_of(arms)]
    rows = tuple(
        (
            row.name,
            str(len(row.orders)),
            str(row.to_stop),
            str(row.to_go_on),
            str(len(row.orders) - row.to_stop - row.to_go_on),
            percent(row.action_rule_accuracy),
        )
        for row in labellings
    )
    head = (
        "labelling", "pairs", "stop over continue", "continue over stop", "of one kind",
        "by actions alone %",
    )  # fmt: skip
    return Sheet("Which way the pairs lean (an answer or a refusal stops)", head, rows)


def agreement_sheet(run: Path, arms: Sequence[Arm], claims: Iterable[Claim]) -> Sheet:
    """Returns the agreement of the labellings of compared arms, one row per step of a claim.

    `the same %` is a share of the pairs that are in either labelling. Claims against the start, and
    steps that both arms share, are left out.
    """
    by_name = {arm.name: arm for arm in arms}
    rows = tuple(
        _agreement(labelling(run, label), labelling(run, baseline))
        for claim in claims
        if {claim.arm, claim.baseline} <= by_name.keys()
        for label, baseline in zip(
            _steps(by_name[claim.arm]), _steps(by_name[claim.baseline]), strict=False
        )
        if label != baseline
    )
    head = ("labelling", "against", "pairs", "pairs there", "the same", "turned", "the same %")
    title = "Pairs in common (of two labellings of the trees)"
    return Sheet(title, head, rows, names=2)


def _agreement(arm: Labelling, baseline: Labelling) -> tuple[str, ...]:
    turned = {(tree, rejected, chosen) for tree, chosen, rejected in baseline.orders}
    same, either = len(arm.orders & baseline.orders), len(arm.orders | baseline.orders)
    return (
        arm.name,
        baseline.name,
        str(len(arm.orders)),
        str(len(baseline.orders)),
        str(same),
        str(len(arm.orders & turned)),
        percent(same / either if either else None),
    )


def _steps(arm: Arm) -> Iterator[str]:
    """Yields the labellings that an arm learns from, in order; none for the start."""
    if arm.before is not None:
        yield from _steps(arm.before)
    if arm.trainer is not None:
        yield arm.label or arm.name
