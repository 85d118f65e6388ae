"""Grows the tree of one question: connects the search to the environment and an evaluator."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from branchwise.agent import Environment, State, StepResult
from branchwise.engines import Sampling
from branchwise.mcts import (
    ChainSettings,
    Expansion,
    Node,
    SearchSettings,
    Tree,
    TreeSettings,
    sample_chains,
    search,
)
from branchwise.rewards import NodeEvaluation, RewardScheme, strict_form
from branchwise.types import Question

from .evaluators import Evaluator

ReportProgress = Callable[[float], None]
"""Called before each iteration with the share of iterations done, in [0, 1]."""

CHILDREN = "tree"
"""Ledger path of a tree's nodes: `tree/<path of the parent>`."""


@dataclass
class GrownTree:
    """A tree with the evaluations of its nodes.

    Attributes:
        moves: Step that led to each node, by the node's path.
        evaluations: Evaluation of each node, by its id.
        stopped: Whether `mcts.max_output_tokens` ended the search early.
    """

    tree: Tree[State]
    moves: dict[str, StepResult] = field(default_factory=dict)
    evaluations: dict[int, NodeEvaluation] = field(default_factory=dict)
    stopped: bool = False

    @property
    def generated(self) -> int:
        """Output tokens of the policy: every draw and every rollout, but not the judge's."""
        children = sum(move.usage.output_tokens for move in self.moves.values())
        return children + sum(r.tokens for e in self.evaluations.values() for r in e.rollouts)


async def grow(
    question: Question,
    environment: Environment,
    evaluator: Evaluator | None,
    settings: SearchSettings,
    scheme: RewardScheme,
    sampling: Sampling,
    report_progress: ReportProgress = lambda share: None,
) -> GrownTree:
    """Grows the tree of one question.

    Args:
        question: Question to grow a tree for. Only the evaluator sees its gold answers.
        environment: Environment that draws children.
        evaluator: Evaluator of new nodes, terminal ones only if its `terminals` is set; None if the
            search needs no such values (playouts, chains).
        settings: Settings of the search, or of the sampling of chains.
        scheme: Reward scheme that values terminal nodes.
        sampling: Sampling of child nodes (rollouts have their own).
        report_progress: See `ReportProgress`.
    """
    grown = GrownTree(Tree.grow_from(await environment.root(question)))

    async def expand(node: Node[State], draw: int) -> Expansion[State]:
        move = await environment.act(
            node.state, sampling, question_id=question.id, path=f"{CHILDREN}/{node.path}", draw=draw
        )
        # Also a duplicate, which adds no node: its tokens count towards `max_output_tokens`.
        grown.moves[f"{node.path}/{draw}".lstrip("/")] = move
        action, text = move.step.action, move.step.text
        same = (action.kind, text if scheme.whole_reply else strict_form(action.content))
        # Draw numbers differ, so with them no child equals a sibling.
        key = same if settings.fold_duplicates else draw
        return Expansion(move.state, move.state.terminal, key)

    async def evaluate(node: Node[State]) -> float | None:
        if node.terminal:
            evaluation = await scheme.finished(question, node.state, node.path)
            if evaluator is not None and evaluator.terminals:
                scored = await evaluator.evaluate(question, node.state, node.path)
                evaluation = replace(scored, verdict=evaluation.verdict)
        elif evaluator is None:
            return None
        else:
            evaluation = await evaluator.evaluate(question, node.state, node.path)
        grown.evaluations[node.id] = evaluation
        return evaluation.value

    iterations = 0

    def keep_going() -> bool:
        nonlocal iterations
        report_progress(min(1.0, iterations / settings.iterations))
        iterations += 1
        limit = settings.max_output_tokens
        grown.stopped = limit is not None and grown.generated >= limit
        return not grown.stopped

    root = grown.tree.root.state
    if isinstance(settings, ChainSettings):
        grown.tree = await sample_chains(root, expand, evaluate, settings, keep_going)
    elif isinstance(settings, TreeSettings):
        grown.tree = await search(root, expand, evaluate, settings, keep_going)
    return grown
