"""What two labellings of the same trees have in common, and which way their pairs lean."""

from pathlib import Path

import pytest
from sample_records import a_pair

from experiments.arms import START, Arm
from experiments.evo.labellings import (
    action_rule_accuracy,
    agreement_sheet,
    labels_of,
    leaning_sheet,
)
from experiments.report import Claim
from storage.manifest import add_parts
from storage.parts import write_part
from storage.schemas import rows_to_table, schema_of

ONE = Arm("one", "train-dpo", label="first")
OTHER = Arm("other", "train-dpo", before=Arm("second-before", "train-dpo"), label="second")

Named = tuple[str, int, str, int, str]
"""Tree, preferred node and action, the other node and action."""


def labelled(run: Path, name: str, *pairs: Named) -> None:
    rows = [
        a_pair(
            pair_id=str(number),
            tree_id=tree,
            chosen_node=chosen,
            chosen_action=better,
            rejected_node=rejected,
            rejected_action=worse,
        )
        for number, (tree, chosen, better, rejected, worse) in enumerate(pairs)
    ]
    table = f"relabelled/{name}/pairs"
    add_parts(run, [write_part(run, table, rows_to_table(rows, schema_of(table), "r"), 0)])


def test_a_pair_is_the_same_only_the_same_way_round_in_the_same_tree(tmp_path: Path) -> None:
    labelled(
        tmp_path,
        "first",
        ("t1", 1, "answer", 2, "search"),
        ("t1", 3, "search", 4, "backtrack"),
        ("t2", 1, "refuse", 2, "backtrack"),
        ("t2", 5, "search", 6, "answer"),
    )
    labelled(
        tmp_path,
        "second",
        ("t1", 1, "answer", 2, "search"),
        ("t1", 4, "backtrack", 3, "search"),
        ("t3", 1, "refuse", 2, "backtrack"),
    )
    single = Arm("other", "train-dpo", label="second")
    sheet = agreement_sheet(tmp_path, (ONE, single), (Claim("one", "other"),))
    # Of six pairs that either has, one is the same, and one the other way round.
    assert sheet.rows == (("first", "second", "4", "3", "1", "1", "16.7"),)
    leaning = leaning_sheet(tmp_path, (Arm(START), ONE, single))
    assert [row[:5] for row in leaning.rows] == [
        ("first", "4", "2", "1", "1"),
        ("second", "3", "2", "0", "1"),
    ]


@pytest.mark.parametrize(
    ("pairs", "share"),
    [
        ([("answer", "search")] * 3 + [("search", "answer")], 0.75),
        # Each two actions have a rule of their own.
        ([("answer", "search"), ("search", "refuse"), ("refuse", "answer")], 1.0),
        # Of two of one kind it has to guess.
        ([("answer", "search"), ("search", "search")] * 2, 0.75),
        ([("search", "search")] * 9 + [("answer", "search")], 0.55),
        ([], None),
    ],
)
def test_a_rule_on_actions_alone_orders_the_commoner_way(
    pairs: list[tuple[str, str]], share: float | None
) -> None:
    assert action_rule_accuracy(pairs) == (None if share is None else pytest.approx(share))


def test_what_actions_alone_order_stands_beside_a_labelling(tmp_path: Path) -> None:
    answers = [("t1", 1, "answer", 2, "search"), ("t2", 1, "answer", 2, "search")]
    labelled(tmp_path, "first", *answers, ("t3", 1, "search", 2, "search"))
    leaning = leaning_sheet(tmp_path, (ONE, OTHER))
    shares = dict(
        zip([row[0] for row in leaning.rows], [row[-1] for row in leaning.rows], strict=True)
    )
    assert (shares["first"], shares["second"]) == ("83.3", "–")


def test_steps_are_compared_in_their_order_and_shared_ones_not_at_all(tmp_path: Path) -> None:
    dynamic = Arm("dynamic", "train-dpo", before=Arm("dynamic-before", "train-dpo"))
    claims = (Claim("dynamic", "other"), Claim("dynamic", START), Claim("dynamic", "nobody"))
    sheet = agreement_sheet(tmp_path, (Arm(START), dynamic, OTHER), claims)
    assert [row[:2] for row in sheet.rows] == [
        ("dynamic-before", "second-before"),
        ("dynamic", "second"),
    ]
    assert {row[-1] for row in sheet.rows} == {"–"}, "nothing was labelled yet"
    shared = Arm("shared", "train-dpo", label="second")
    assert agreement_sheet(tmp_path, (ONE, shared), (Claim("shared", "one"),)).rows
    assert not agreement_sheet(tmp_path, (OTHER, shared), (Claim("shared", "shared"),)).rows


def test_labellings_are_named_once_in_the_order_in_which_they_are_learned() -> None:
    assert labels_of((Arm(START), OTHER, ONE, ONE)) == ["second-before", "second", "first"]
