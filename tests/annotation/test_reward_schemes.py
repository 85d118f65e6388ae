"""Reward schemes on whole trees: EVO-RAG grow_tree, stored and relabelled; ReasonRAG compared."""

import hashlib
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from agent_protocols import agent_settings
from evo_world import GOLD, Grove, evo_scheme, rewards, step
from sample_records import a_question
from scripted_engine import ScriptedEngine, ScriptedRetriever

from branchwise.agent.environment import Environment
from branchwise.agent.evo_rag import EvoRAG
from branchwise.agent.replay import replay_tree
from branchwise.annotation.grower import GrownTree, grow
from branchwise.annotation.pairs import sibling_pairs
from branchwise.annotation.records import Provenance, pair_row, tree_rows
from branchwise.annotation.settings import PairSettings
from branchwise.engines.sampling import Capabilities, SampleRequest, Sampling
from branchwise.mcts import SEARCH_SETTINGS
from branchwise.rewards.evo_rag.returns import label_returns
from branchwise.rewards.evo_rag.scheme import EvoRagRewards
from branchwise.rewards.outcome import Label
from branchwise.rewards.scheme import RewardScheme
from branchwise.runs.recipe import Recipe
from branchwise.storage.schemas import rows_to_table, schema_of, table_to_records
from branchwise.types import Passage, RetrievedPassage, TreeNode

QUESTION = a_question(supporting_ids=("lyon",))
CORPUS = {name: Passage(id=name, title=name, text=f"about {name}") for name in ("lyon", "osaka")}
PROVENANCE = Provenance(
    seed=0, cycle=0, policy_model="m", policy_digest="d", judge_model=None, prompt_hash="p",
    label_digest="l", config_digest="c",
)  # fmt: skip
STEPS = (
    "<search>Lyon</search>", "<search>Osaka</search>", "<search>Kyoto</search>",
    "<search>river of Lyon</search>", "<search>Lyon, Osaka</search>", "<search>who?</search>",
    "<backtrack/>", "<backtrack/>", "<answer>Paris</answer>", "<answer>Rome</answer>",
    "<refuse/>", "<refuse/>", "well, well",
)  # fmt: skip


def hash_policy(replies: tuple[str, ...] = STEPS) -> ScriptedEngine:
    """Engine whose reply (a step or a verdict) depends only on the path and the draw."""

    def reply(request: SampleRequest) -> str:
        name = f"{request.identity.path}:{request.identity.draw}"
        thrown = hashlib.blake2b(name.encode()).digest()[0]
        if "no searches left" in request.messages[0].content:
            return "<answer>Paris</answer>"
        text = replies[thrown % len(replies)]
        noted = "Search:" in request.messages[-1].content and thrown > 200
        return f"<note>seen</note>{text}" if noted else text

    return ScriptedEngine(reply, capabilities=Capabilities())


def passages_named_in(query: str) -> list[RetrievedPassage]:
    found = [one for name, one in CORPUS.items() if name in query.lower()]
    return [RetrievedPassage(**one.model_dump(), score=1.5) for one in found]


async def grow_tree(scheme: RewardScheme, **search: Any) -> tuple[GrownTree, ScriptedEngine]:
    policy = hash_policy()
    protocol = EvoRAG(agent_settings("evo-rag", max_steps=6))
    environment = Environment(protocol, policy, ScriptedRetriever(passages_named_in), top_k=1)
    wide = {"max_children": 5} if search.get("kind") != "chains" else {}
    kind = SEARCH_SETTINGS[search.get("kind", "tree")]
    settings = kind.model_validate({"iterations": 80, **wide, **search})
    tree = await grow(QUESTION, environment, None, settings, scheme, Sampling())
    return tree, policy


def stored(tree: GrownTree) -> list[TreeNode]:
    """Returns the rows of a tree after a round trip through a table."""
    rows = tree_rows(QUESTION, tree, PROVENANCE)
    return table_to_records(rows_to_table(rows, schema_of("trees"), "run"), TreeNode)


GROWTHS = [
    {"evaluator": "playout", "normalise": True},
    {"kind": "chains", "iterations": 20, "branches": 3},
]


@pytest.mark.parametrize("search", GROWTHS, ids=["playout", "chains"])
async def test_a_stored_tree_replays_to_the_same_states_and_labels_without_a_call(
    search: dict[str, object],
) -> None:
    worth = evo_scheme()
    tree, policy = await grow_tree(worth, **search)
    states = [node.state for node in tree.tree.nodes]
    rows = stored(tree)
    asked = len(policy.asked)
    replayed = replay_tree(QUESTION, rows, CORPUS, EvoRAG())
    for state, again in zip(states, replayed, strict=True):
        assert (again.question, again.stage) == (state.question, state.stage)
        for one, other in zip(again.steps, state.steps, strict=True):
            # Why an action was invalid is not stored.
            action = replace(other.action, reason=None)
            assert one == replace(other, action=action)
    before = worth.labels(QUESTION, tree_rows(QUESTION, tree, PROVENANCE), states)
    assert worth.labels(QUESTION, rows, replayed) == before
    assert len(policy.asked) == asked
    kinds = Counter(row.action for row in rows)
    assert min(kinds[kind] for kind in ("search", "backtrack", "answer", "refuse")) > 0
    for row, label in zip(rows, before, strict=True):
        if row.terminal and row.action != "invalid":
            assert label.reward is not None
            path: Any = rewards(max_steps=6).episode(states[row.node_id].steps, GOLD).total
            above: Any = rewards(max_steps=6).episode(states[row.node_id].steps[:-1], GOLD).total
            assert label.reward == pytest.approx(path - above)
            assert tree.evaluations[row.node_id].value == pytest.approx(path), (
                "the search should back up the return of the episode"
            )


async def test_only_finished_trajectories_are_valued_and_counted_in_labels() -> None:
    worth = evo_scheme()
    tree, _ = await grow_tree(worth, evaluator="playout", normalise=True)
    nodes = tree.tree.nodes
    assert set(tree.evaluations) == {node.id for node in nodes if node.terminal}
    rows = stored(tree)
    labels = worth.labels(QUESTION, rows, [node.state for node in nodes])
    finished = {row.node_id for row in rows if row.terminal and row.action != "invalid"}
    for row, label in zip(rows[1:], labels[1:], strict=True):
        below = {
            n.id for n in nodes if n.id in finished
            and row.node_id in {above.id for above in tree.tree.lineage(n)}
        }  # fmt: skip
        assert label.n_outcomes == len(below)
        assert (label.reward is None) == (not below)


def scheme_with_verifier(*words: str, **settings: Any) -> tuple[EvoRagRewards, ScriptedEngine]:
    engine = hash_policy(words)
    return evo_scheme(verifier=engine, **settings), engine


async def test_the_verifier_judges_refusals_after_a_search_and_verdicts_are_stored() -> None:
    worth, engine = scheme_with_verifier("yes", "no", "hm")
    tree, policy = await grow_tree(worth, kind="chains", iterations=40)
    rows, states = stored(tree), [node.state for node in tree.tree.nodes]
    searched = {
        row.node_id: any(s.action.kind == "search" for s in states[row.node_id].steps)
        for row in rows if row.action == "refuse"
    }  # fmt: skip
    assert set(searched.values()) == {True, False}
    paths = {r.identity.path for r in engine.asked}
    assert paths == {
        f"verifier/{tree.tree.nodes[n].path}" for n, asked in searched.items() if asked
    }
    assert tree.generated == 10 * len(policy.asked), "a verifier's tokens are not the policy's"
    assert {row.verdict for row in rows if row.action != "refuse"} == {None}
    refusals = {row.node_id: row.verdict for row in rows if searched.get(row.node_id)}
    assert set(refusals.values()) == {True, False, None}
    # Without the verifier, the stored verdicts give the same labels.
    labels = worth.labels(QUESTION, rows, states)
    worth.verifier = None
    assert labels == worth.labels(QUESTION, rows, states)
    for node_id, verdict in refusals.items():
        earned = {c.name: c.value for c in labels[node_id].components}["refusal"]
        assert earned == {True: -1.0, False: 1.0, None: None}[verdict]
        whole = worth.rewards.episode(states[node_id].steps, GOLD, verdict)
        assert tree.evaluations[node_id].value == pytest.approx(whole.total)
    for node_id, asked in searched.items():
        if not asked:
            value = {c.name: c.value for c in labels[node_id].components}["refusal"]
            assert value == -1.0


async def test_early_refusal_judged_verifies_refusals_without_a_search_too() -> None:
    worth, engine = scheme_with_verifier("no", early_refusal="judged")
    grove = Grove()
    grove.add(0, step("refuse"))
    facts = await worth.finished(QUESTION, grove.states[1], "0")
    assert (len(engine.asked), facts.verdict) == (1, False)
    # Refinement: ρ 0.5, η 0.05.
    assert facts.value == pytest.approx(0.5 - 0.05)


async def test_without_a_verifier_refusals_are_judged_by_the_gold_documents() -> None:
    worth = evo_scheme()
    grove = Grove()
    (found,) = grove.chain(0, [step("search", "Lyon", "lyon")])
    (missed,) = grove.chain(0, [step("search", "Osaka", "osaka")])
    for parent in (found, missed):
        grove.add(parent, step("refuse"))
    facts = [await worth.finished(QUESTION, grove.states[n], str(n)) for n in (3, 4)]
    assert [one.verdict for one in facts] == [None, None]
    # Refinement, T = 6: β 1, η 0.05; then η 0.05 + 0.05 / 6, ρ 0.5.
    later = 0.05 + 0.05 / 6
    expected = [1 - 0.05 - 0.5 - later, -1 - 0.05 + 0.5 - later]
    assert [one.value for one in facts] == pytest.approx(expected)


async def test_reasonrag_values_and_labels_follow_its_own_formula() -> None:
    worth = Recipe(name="x").scheme
    grove = Grove()
    searched = grove.add(0, step("search", "Lyon", "lyon"))
    right = grove.add(searched, step("answer", "Paris"))
    wrong = grove.add(searched, step("answer", "Rome"))
    values = [(await worth.finished(QUESTION, grove.states[n], "0")).value for n in (right, wrong)]
    assert values == pytest.approx([0.81, 0.0])
    labels = worth.labels(QUESTION, grove.nodes, grove.states)
    assert [label.reward for label in labels] == pytest.approx([0.405, 0.405, 0.81, 0.0])


def siblings() -> Grove:
    """One state with three children; Mid: κ 0.1, ρ 0.5, δ 0.5, γ 0.25 · 0.5, η 0.05."""
    grove = Grove()
    state = grove.add(0, step("search", "Lyon", "lyon"))
    for last in (step("answer", "Paris"), step("answer", "Rome"), step("refuse")):
        grove.add(state, last)
    return grove


def test_the_gap_of_a_pair_ignores_components_that_are_none_for_one_side() -> None:
    """The rewards differ by 0.4 − 0.3, but 0.5 of the first is a part that the other lacks."""
    one = Label(0.4, 1, weighted={"refusal": 0.5, "answer": -0.1})
    other = Label(0.3, 1, weighted={"refusal": None, "answer": 0.3})
    grove = siblings()
    labels = [Label(None, 0), Label(None, 0), one, other, Label(None, 0)]
    (pair,), _ = sibling_pairs(grove.nodes, labels, PairSettings())
    assert (pair.chosen.node_id, pair.gap) == (3, pytest.approx(0.4))


def test_the_prompt_of_a_pair_is_that_of_the_shared_parent_state() -> None:
    grove = Grove()
    grove.chain(0, [step("search", "Lyon", "lyon"), step("answer", "Paris")])
    grove.chain(0, [step("search", "Osaka", "osaka"), step("answer", "Rome")])
    labels = label_returns(grove.nodes, grove.states, GOLD, rewards(schedule="static"))
    pairs, _ = sibling_pairs(grove.nodes, labels, PairSettings(min_gap=0.2))
    prompt = EvoRAG(agent_settings("evo-rag", max_steps=6)).prompt
    (pair,) = pairs
    row = pair_row(QUESTION, pair, prompt(grove.states[0]), PROVENANCE)
    assert (row.chosen_node, row.rejected_node) == (1, 3)
    assert [m.content for m in row.prompt] == [m.content for m in prompt(grove.states[0])]
