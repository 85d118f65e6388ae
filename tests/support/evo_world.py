"""Handwritten trees of EVO-RAG steps, and a policy that grows them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from branchwise.agent.evo_rag import EvoRAG
from branchwise.agent.state import Action, State, Step
from branchwise.engines.sampling import Engine
from branchwise.rewards.evo_rag.scheme import EvoRagRewards
from branchwise.rewards.evo_rag.steps import EpisodeRewards, Gold
from branchwise.rewards.settings import EvoRagSettings
from branchwise.runs.recipe import Recipe
from branchwise.types import RetrievedPassage, TreeNode

PROTOCOL = EvoRAG()
GOLD = Gold(("Paris",), answerable=True, documents=frozenset({"lyon"}))


def found(name: str) -> RetrievedPassage:
    return RetrievedPassage(id=name, title=name, text=f"about {name}", score=1.0)


def step(kind: str, content: str = "", *passages: str, note: str | None = None) -> Step:
    """Returns a step as the policy would write it; `passages` are ids."""
    action = Action(kind, content)
    text = PROTOCOL.render(action)
    return Step(
        "reasoning",
        f"<note>{note}</note>{text}" if note else text,
        action,
        passages=tuple(found(name) for name in passages),
    )


def rewards(
    max_steps: int = 10, *, cosine: float = 0.5, verified: bool = False, **settings: Any
) -> EpisodeRewards:
    """Returns rewards for which all sub-queries have the same similarity."""
    found = EvoRagSettings.model_validate(settings)
    return EpisodeRewards(
        found,
        found.horizon or max_steps,
        lambda query, others: cosine,
        verified=verified,
    )


def evo_scheme(
    max_steps: int = 6, verifier: Engine | None = None, **settings: Any
) -> EvoRagRewards:
    """Returns EVO-RAG's scheme with these rewards; `verifier`, if any, checks refusals."""
    blocks = {
        "agent": {"protocol": "evo-rag", "max_steps": max_steps},
        "rewards": {"scheme": "evo-rag", **settings},
        "verifier": None if verifier is None else {},
    }
    scheme = EvoRagRewards(Recipe.model_validate({"name": "x", **blocks}), verifier)
    scheme.rewards = rewards(max_steps, verified=verifier is not None, **settings)
    return scheme


@dataclass
class Grove:
    """Handwritten tree: `nodes` in order of id, and their `states`."""

    question: str = "Capital of France?"
    nodes: list[TreeNode] = field(default_factory=list)
    states: list[State] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._append(State(self.question), -1, None, visits=1)

    def add(self, parent: int, made: Step, visits: int = 1, **more: Any) -> int:
        """Appends a child of `parent`; returns its id."""
        above = self.states[parent]
        state = above.after(made, PROTOCOL.next_stage(above, made.action))
        return self._append(state, parent, made, visits=visits, **more)

    def chain(self, parent: int, made: Sequence[Step]) -> list[int]:
        """Appends a trajectory below `parent`; returns the ids of its nodes."""
        ids = []
        for one in made:
            parent = self.add(parent, one)
            ids.append(parent)
        return ids

    def _append(self, state: State, parent: int, made: Step | None, **more: Any) -> int:
        fields = {
            "tree_id": "t", "question_id": "q1", "source": "atlas", "seed": 0,
            "node_id": len(self.nodes), "parent_id": parent, "depth": state.depth,
            "stage": "reasoning", "terminal": state.terminal,
            "action": made.action.kind if made else "", "text": made.text if made else "",
            "content": made.action.content if made else "",
        }  # fmt: skip
        self.nodes.append(TreeNode.model_validate(fields | more))
        self.states.append(state)
        return len(self.nodes) - 1


EVO: dict[str, Any] = {
    "agent": {"protocol": "evo-rag", "max_steps": 6},
    "mcts": {"kind": "chains", "iterations": 6, "branches": 2},
    "rewards": {"scheme": "evo-rag", "stage": "discovery"},
    "pairs": {"min_gap": 0.2},
}
"""Blocks of an EVO-RAG recipe, for `tiny_dataset.recipe`."""


def evo_policy(request: dict[str, Any]) -> str:
    """Returns a reply that depends only on the request and its seed; also verifies refusals."""
    seed = int(request.get("seed", 0))
    system, user = request["messages"][0]["content"], request["messages"][-1]["content"]
    if "Do the passages suffice?" in user:
        return "yes" if "capital" in user else "no"
    answer = f"<answer>{('Paris', 'Tokyo', 'Yen')[seed % 3]}</answer>"
    search = f"<search>{('Lyon', 'Osaka', 'capital', 'France', 'Japan')[seed % 5]}</search>"
    if "no searches left" in system:
        return answer
    if "Search:" not in user:
        return (search, search, search, "<refuse/>")[seed % 4]
    note = "<note>The capital is Paris</note>" if seed % 2 else ""
    return note + (search, answer, "<backtrack/>", answer, "<refuse/>", search, answer)[seed % 7]


class WordsAlike:
    """Similarity as the share of common words, instead of an encoder that takes seconds to load."""

    identity = "words"

    def __call__(self, query: str, others: Sequence[str]) -> float:
        words = set(query.lower().split())
        sides = [set(other.lower().split()) for other in others]
        return max(len(words & side) / len(words | side) for side in sides)


words_alike = WordsAlike()
