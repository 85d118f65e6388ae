"""Figures of pairs and trees, compared with values computed by hand."""

from typing import Any

import pytest
from sample_records import a_node, a_pair, a_rollout

from branchwise.analysis.diagnosis import pair_figures, similarity, tree_figures
from branchwise.types import Message, Pair, TreeNode

QUERIES = {"chosen_action": "query", "rejected_action": "query"}


def between(chosen: str, rejected: str, **changes: Any) -> Pair:
    one, other = (Message(role="assistant", content=text) for text in (chosen, rejected))
    return a_pair(chosen=(one,), rejected=(other,), **changes)


def test_pair_figures_by_hand() -> None:
    figures = pair_figures(
        [
            between("<query>a b c</query>", "<query>x</query>", rejected_outcomes=1, **QUERIES),
            between("<query>d e f</query>", "<query>y</query>", rejected_outcomes=2, **QUERIES),
            between("<query>g</query>", "<query>z</query>", question_id="q2", **QUERIES),
            between("<query>h</query>", "<answer>Rome</answer>", rejected_outcomes=1),
        ]
    )
    assert figures is not None
    assert (figures.pairs, figures.questions) == (4, 2)
    assert figures.one_outcome == 0.5, "the label of a final answer is exact"
    assert figures.chosen_longer == pytest.approx(2 / 3)
    assert figures.length_difference == pytest.approx((4 + 4 + 0 - 5) / 4)
    assert figures.actions == {"query > query": 3, "query > answer": 1}
    assert pair_figures([]) is None


@pytest.mark.parametrize(
    ("chosen", "rejected", "same"),
    [
        ("<query>The capital of France</query>", "<query>France, capital of</query>", True),
        ("<query>capital of France</query>", "<query>capital of Japan</query>", False),
        ("<evidence>None</evidence>", "<evidence>none.</evidence>", True),
        # A note is about the previous search, not about this one.
        ("<note>It is in Peru</note><search>Peru</search>", "<search>Peru.</search>", True),
    ],
)
def test_similarity_ignores_word_order_case_and_notes(
    chosen: str, rejected: str, same: bool
) -> None:
    pair = between(chosen, rejected, rejected_action="query")
    assert (similarity(pair) >= 0.8) == same
    assert similarity(between(chosen, rejected, rejected_action="answer")) == 0


def test_repeated_and_contradicted_pairs_are_counted() -> None:
    one = between("<query>a</query>", "<query>b</query>")
    other_prompt = one.model_copy(update={"prompt": one.prompt[:1]})
    figures = pair_figures([one, one, between("<query>b</query>", "<query>a</query>")])
    assert figures is not None
    assert (figures.repeated, figures.contradicted) == (pytest.approx(1 / 3), 1.0)
    figures = pair_figures([one, other_prompt])
    assert figures is not None
    assert (figures.repeated, figures.contradicted) == (0.0, 0.0)


def test_imported_pairs_have_no_figures_of_labels() -> None:
    figures = pair_figures([a_pair(reward_gap=0.0, chosen_outcomes=0, rejected_outcomes=0)])
    assert figures is not None
    assert figures.one_outcome is None
    assert figures.gaps is None


def a_tree(question: str, *children: tuple[float | None, float | None]) -> list[TreeNode]:
    """Returns a root and its children, each given as (reward, F1 of its only rollout)."""
    root = a_node(
        tree_id=question, question_id=question, node_id=0, parent_id=-1, depth=0, action=""
    )
    nodes = [root]
    for number, (reward, f1) in enumerate(children, start=1):
        rollout = a_rollout(None if f1 is None else "x", f1=f1)
        nodes.append(
            a_node(
                tree_id=question,
                question_id=question,
                node_id=number,
                reward=reward,
                rollouts=(rollout,),
            )
        )
    return nodes


def test_tree_figures_by_hand() -> None:
    figures = tree_figures(
        [
            a_tree("mixed", (0.8, 1.0), (0.4, 0.5)),
            a_tree("right", (0.9, 1.0), (0.9, 1.0)),
            a_tree("wrong", (0.0, 0.0), (None, None)),
            a_tree("nothing"),
        ]
    )
    assert figures is not None
    assert (figures.questions, figures.trees) == (4, 4)
    assert (figures.states, figures.flat) == (2, 0.5), "one labelled child is not compared"
    assert figures.spread == pytest.approx(0.1)
    assert (figures.right, figures.wrong) == (0.25, 0.25)
    assert figures.silent == 0.5
    assert figures.invalid_rollouts == pytest.approx(1 / 6)
    assert tree_figures([]) is None


def test_a_question_is_silent_only_if_all_of_its_trees_are() -> None:
    again = [node.model_copy(update={"tree_id": "other"}) for node in a_tree("q", (0.0, 0.0))]
    figures = tree_figures([a_tree("q", (0.9, 1.0)), again])
    assert figures is not None
    assert (figures.questions, figures.trees, figures.silent) == (1, 2, 0.0)
