"""One question from root to tree: the search, wired to the environment and an evaluator."""

from dataclasses import dataclass, field

from agent.environment import Environment, Move
from agent.state import State
from annotation.evaluators import Evaluator, NodeFacts, evaluate_leaf
from engines.sampling import Sampling, Usage
from mcts import Expansion, Node, SearchSettings, Tree, search
from rewards.answers import normalise
from rewards.settings import SpreSettings
from storage.records import Question


@dataclass
class GrownTree:
    """A tree with the facts of its nodes.

    Attributes:
        moves: the step that led to a node, by the node's path.
        facts: the evaluation of a node, by its id.
    """

    tree: Tree[State]
    moves: dict[str, Move] = field(default_factory=dict)
    facts: dict[int, NodeFacts] = field(default_factory=dict)

    @property
    def usage(self) -> Usage:
        """Tokens of every call made for this tree, repeated draws included."""
        drawn = sum((move.usage for move in self.moves.values()), Usage())
        return sum((fact.usage for fact in self.facts.values()), drawn)


async def grow(
    question: Question,
    environment: Environment,
    evaluator: Evaluator,
    settings: SearchSettings,
    spre: SpreSettings,
    sampling: Sampling,
) -> GrownTree:
    """Grow the tree of one question.

    Args:
        question: its gold answers reach the evaluator only, never the policy.
        environment: draws children.
        evaluator: values new non-terminal nodes.
        settings: the search.
        spre: values terminal nodes.
        sampling: of the children (rollouts have their own).
    """
    grown = GrownTree(Tree.grow_from(State(question.question)))

    async def expand(node: Node[State], draw: int) -> Expansion[State]:
        move = await environment.act(
            node.state, sampling, question_id=question.id, path=f"tree/{node.path}", draw=draw
        )
        grown.moves[f"{node.path}/{draw}".lstrip("/")] = move
        action = move.step.action
        key = (action.kind, normalise(action.content))
        return Expansion(move.state, move.state.terminal, key)

    async def evaluate(node: Node[State]) -> float | None:
        if node.terminal:
            facts = evaluate_leaf(question, node.state, spre)
        else:
            facts = await evaluator.evaluate(question, node.state, node.path)
        grown.facts[node.id] = facts
        return facts.value

    grown.tree = await search(grown.tree.root.state, expand, evaluate, settings)
    return grown
