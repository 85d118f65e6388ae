"""Labels and pairs of one grown tree, for both `annotate` and `relabel`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from branchwise.agent import State
from branchwise.rewards import Prompt, RewardModel, RewardScheme, guessable, prefix_of
from branchwise.types import Pair, Question, TreeNode

from .pairs import sibling_pairs
from .records import Provenance, pair_row, with_labels
from .settings import PairSettings


@dataclass(frozen=True)
class Labeller:
    """Labels trees with a reward scheme and compares their siblings.

    Attributes:
        prompt: State → messages of the prompt for its next step.
        scored_by: Reward model that orders the pairs; None orders them by their labels.
        ties: Whether equal siblings are also paired, for studies; the earlier one is "chosen".
    """

    scheme: RewardScheme
    pairs: PairSettings
    prompt: Prompt
    provenance: Provenance
    scored_by: RewardModel | None = None
    ties: bool = False

    def label(
        self, question: Question, rows: Sequence[TreeNode], states: Sequence[State]
    ) -> tuple[list[TreeNode], list[Pair], Counter[str]]:
        """Returns the with_labels nodes, the pairs, and the number of dropped pairs by reason.

        Args:
            rows: Nodes of one tree, in order of `node_id`.
            states: States of the nodes, in the same order.
        """
        labels = self.scheme.labels(question, rows, states)
        scores = node_scores(self.scored_by, rows, states, self.prompt) if self.scored_by else None
        siblings, dropped = sibling_pairs(
            rows,
            labels,
            self.pairs,
            scores,
            guessable=guessable(question.question, question.answers),
            whole_reply=self.scheme.whole_reply,
            ties=self.ties,
        )
        pairs = [
            pair_row(question, pair, self.prompt(states[pair.chosen.parent_id]), self.provenance)
            for pair in siblings
        ]
        return with_labels(rows, labels), pairs, dropped


def node_scores(
    model: RewardModel, nodes: Sequence[TreeNode], states: Sequence[State], prompt: Prompt
) -> list[float | None]:
    """Returns a model's score of the step that led to each node; None for the root.

    Args:
        nodes: One tree, in order of `node_id`.
        states: States of the nodes, in the same order.
        prompt: State → messages of the prompt for its next step.
    """
    below_root = [(node, state) for node, state in zip(nodes, states, strict=True) if state.steps]
    steps = [prefix_of(state, prompt) for _, state in below_root]
    scores = iter(
        model.score(steps, [node.depth - 1 for node, _ in below_root]) if below_root else ()
    )
    return [next(scores) if state.steps else None for state in states]
