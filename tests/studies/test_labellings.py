"""Agreement of two labellings of the same trees, and the actions that their pairs prefer."""

from pathlib import Path

import pytest
from sample_records import a_pair

from branchwise.storage.manifest import add_parts
from branchwise.storage.parts import write_part
from branchwise.storage.schemas import rows_to_table, schema_of
from branchwise.studies.arms import START, Arm
from branchwise.studies.evo.labellings import action_rule_accuracy, agreement_sheet, leaning_sheet
from branchwise.studies.study_tables import Claim

ONE = Arm("one", "train-dpo", label="first")

Named = tuple[str, int, str, int, str]
"""Tree, preferred node and action, the other node and action."""


def write_pairs(run: Path, name: str, *pairs: Named) -> None:
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


def test_agreement_counts_equal_and_reversed_pairs_of_the_same_tree(tmp_path: Path) -> None:
    write_pairs(
        tmp_path,
        "first",
        ("t1", 1, "answer", 2, "search"),
        ("t1", 3, "search", 4, "backtrack"),
        ("t2", 1, "refuse", 2, "backtrack"),
        ("t2", 5, "search", 6, "answer"),
    )
    write_pairs(
        tmp_path,
        "second",
        ("t1", 1, "answer", 2, "search"),
        ("t1", 4, "backtrack", 3, "search"),
        ("t3", 1, "refuse", 2, "backtrack"),
    )
    single = Arm("other", "train-dpo", label="second")
    sheet = agreement_sheet(tmp_path, (ONE, single), (Claim("one", "other"),))
    # Of six pairs in either labelling, one is in both, and one is reversed.
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
        # Every two actions have their own rule.
        ([("answer", "search"), ("search", "refuse"), ("refuse", "answer")], 1.0),
        # Two equal actions are a guess: 0.5.
        ([("answer", "search"), ("search", "search")] * 2, 0.75),
        ([("search", "search")] * 9 + [("answer", "search")], 0.55),
        ([], None),
    ],
)
def test_the_action_rule_predicts_the_more_common_order_of_two_actions(
    pairs: list[tuple[str, str]], share: float | None
) -> None:
    assert action_rule_accuracy(pairs) == (None if share is None else pytest.approx(share))
