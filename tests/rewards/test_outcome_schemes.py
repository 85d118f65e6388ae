"""ARENA, R1-Searcher and Eval-RAR as reward schemes: labels and pairs of small trees."""

from typing import Any

import pytest
from sample_records import a_question
from scripted_engine import ScriptedRetriever, SpellingEngine

from branchwise.agent.environment import Environment
from branchwise.agent.protocols import protocol_of
from branchwise.annotation.grower import grow
from branchwise.annotation.pairs import sibling_pairs
from branchwise.annotation.records import Provenance, tree_rows
from branchwise.annotation.settings import PairSettings
from branchwise.engines.sampling import Sampling
from branchwise.rewards.scheme import RewardScheme
from branchwise.rewards.schemes import scheme_of
from branchwise.runs.recipe import Recipe
from branchwise.runs.recipe_checks import find_conflicts
from branchwise.types import Paragraph

QUESTION = a_question(
    question="Where?",
    answers=("Oslo",),
    paragraphs=(
        Paragraph(title="A", text="Oslo is a city.", is_supporting=True, id="a"),
        Paragraph(title="B", text="Rome is a city.", id="b"),
    ),
)
ONE_WAY = {"kind": "chains", "iterations": 2}


def recipe(protocol: str, rewards: dict[str, Any], **blocks: Any) -> Recipe:
    agent: dict[str, Any] = {"protocol": protocol}
    agent |= {} if protocol == "arena" else {"max_steps": 4}
    agent |= {"prefill": ""} if protocol == "r1-searcher" else {}
    given = {"mcts": ONE_WAY, **blocks}
    return Recipe.model_validate({"name": "t", "agent": agent, "rewards": rewards, **given})


async def labels_and_pairs(one: Recipe, *texts: str) -> tuple[list[Any], list[Any]]:
    """Returns (action, content, label) per node, and pairs, of a tree with these replies."""
    environment = Environment(
        protocol_of(one.agent), SpellingEngine(list(texts)), ScriptedRetriever(), top_k=1
    )
    scheme: RewardScheme = scheme_of(one)
    tree = await grow(QUESTION, environment, None, one.mcts, scheme, Sampling())
    rows = tree_rows(QUESTION, tree, Provenance(0, 0, "m", "d", None, "h", "l", "c"))
    labels = scheme.labels(QUESTION, rows, [node.state for node in tree.tree.nodes])
    pairs, _ = sibling_pairs(rows, labels, PairSettings(), whole_reply=scheme.whole_reply)
    return [
        (row.action, row.content, label.reward) for row, label in zip(rows, labels, strict=True)
    ], pairs


async def test_a_step_is_labelled_with_the_mean_reward_of_its_descendants() -> None:
    one = recipe(
        "eval-rar",
        {"scheme": "eval-rar"},
        mcts={"iterations": 3, "max_children": 3, "evaluator": "playout", "normalise": True},
    )
    nodes, pairs = await labels_and_pairs(
        one,
        "<search>x</search>",
        "<answer>Oslo</answer>",
        "<answer>Rome</answer>",
        "<answer>Oslo</answer>",
    )
    assert nodes[0] == ("", "", None)
    assert ("search", "x", 1.0) in nodes and ("answer", "Rome", 0.0) in nodes
    assert {(p.chosen.content, p.rejected.content) for p in pairs} == {
        ("x", "Rome"),
        ("Oslo", "Rome"),
    }


async def test_an_invalid_step_has_no_label_but_lowers_those_of_its_ancestors() -> None:
    one = recipe("r1-searcher", {"scheme": "r1-searcher", "stage": 2})
    query = "<think>a <|begin_of_query|> x <|end_of_query|>"
    nodes, _ = await labels_and_pairs(
        one, query, "b</think>\n<answer>Oslo</answer>", query, "nothing more"
    )
    assert nodes[1][2] == pytest.approx((1.0 - 2.0) / 2), (
        "the mean of a right answer (1) and a rollout without an answer (−2)"
    )
    assert nodes[-1][0] == "invalid" and nodes[-1][2] is None


async def test_arena_labels_depend_on_the_cited_references() -> None:
    one = recipe("arena", {"scheme": "arena"})
    full = "<relevance>[1]</relevance>\n<analysis>1 says so.</analysis>\n<answer>Oslo</answer>"
    part = full.replace("[1]", "[1,2]")
    nodes, pairs = await labels_and_pairs(one, full, part)
    assert [label for *_, label in nodes] == [None, 13.0, 2.5], (
        "the answers are equal, the references differ"
    )
    assert [pair.gap for pair in pairs] == [pytest.approx(10.5)]
    nodes, pairs = await labels_and_pairs(one, full, full)
    assert [label for *_, label in nodes] == [None, 13.0], "equal replies should be one node"
    other = part.replace("Oslo", "Rome")
    nodes, pairs = await labels_and_pairs(one, full, other)
    assert [label for *_, label in nodes] == [None, 13.0, 1.5]
    assert pairs[0].gap == pytest.approx(11.5)


@pytest.mark.parametrize(
    ("protocol", "rewards", "blocks", "problem"),
    [
        ("reasonrag", {"scheme": "arena"}, {}, "rewards the protocol arena"),
        ("search-r1", {"scheme": "eval-rar"}, {"mcts": {}}, "mcts.evaluator: playout"),
        ("eval-rar", {"scheme": "eval-rar"}, {"pairs": {"invalid": "rejected"}}, "pairs.invalid"),
    ],
)
def test_conflicting_settings_are_reported(
    protocol: str, rewards: dict[str, Any], blocks: dict[str, Any], problem: str
) -> None:
    found = find_conflicts(recipe(protocol, rewards, **blocks))
    assert any(problem in one for one in found), found
    assert not find_conflicts(recipe("search-r1", {"scheme": "eval-rar", "reward": "em"}))
