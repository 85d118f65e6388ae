"""Groups of siblings from stored trees, for step-by-step outcome RL without new rollouts.

A tree's node is a rollout of one call, and its siblings are its group. Its reward is its label: the
mean outcome of the rollouts at and below it. So a step is compared with the policy's other steps
in the same state (Tree-GRPO; Ji et al. 2025, section 3.3, within a tree).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean
from typing import Any

from branchwise.agent import protocol_of
from branchwise.base import ConfigError
from branchwise.runs import Run, StoredTree, stored_trees
from branchwise.training import (
    BatchMetrics,
    PolicyCall,
    RolloutBatch,
    StepTokens,
    TrainingRollout,
    batch_indices,
    has_spread,
)
from branchwise.types import NO_PARENT, Question
from branchwise.weights import prompt_ids, target_ids

Group = tuple[TrainingRollout, ...]


@dataclass(frozen=True)
class TreeGroups:
    """The sibling groups of a run's trees, in batches of questions.

    A source of `training.grpo`. After the last question it restarts in another order.
    """

    trees: Sequence[Sequence[Group]]
    batch_questions: int
    seed: int

    def collect(self, number: int, model: Any) -> RolloutBatch:
        """Returns batch `number`; `model` is not used."""
        chosen = batch_indices(number, self.batch_questions, len(self.trees), f"trees:{self.seed}")
        groups = [group for _, index in chosen for group in self.trees[index]]
        silent = fmean(not _has_spread(group) for group in groups)
        rollouts = float(sum(map(len, groups)))
        return RolloutBatch(groups, BatchMetrics(rollouts=rollouts, silent_share=silent))


def tree_groups(run: Run, table: str, tokenizer: Any) -> list[tuple[Question, list[Group]]]:
    """Reads the sibling groups with spread of all trees, in order of the trees' ids.

    Raises:
        ConfigError: If no tree has such a group, or corpus or prompts have changed.
    """
    trees = [
        (tree.id, tree.question, _groups_of(run, tree, tokenizer))
        for tree in stored_trees(run, table)
    ]
    if not any(groups for _, _, groups in trees):
        raise ConfigError(
            f"{run.folder}: no step has a sibling with another label. Annotate more questions, or "
            "search longer (mcts.iterations)"
        )
    trees.sort(key=itemgetter(0))
    return [(question, groups) for _, question, groups in trees if groups]


def _groups_of(run: Run, tree: StoredTree, tokenizer: Any) -> list[Group]:
    protocol = protocol_of(run.recipe.agent)
    siblings: dict[int, dict[tuple[int, ...], TrainingRollout]] = {}
    for node in tree.nodes:
        if node.parent_id == NO_PARENT or node.reward is None:
            continue
        ids = node.token_ids or target_ids(node.text, tokenizer, protocol.stops, cut=node.cut)
        prompt = prompt_ids(protocol.prompt(tree.states[node.parent_id]), tokenizer)
        calls = (PolicyCall(StepTokens(prompt, ids)),)
        rollout = TrainingRollout(node.question_id, calls, node.reward)
        siblings.setdefault(node.parent_id, {})[ids] = rollout
    return list(filter(_has_spread, (tuple(group.values()) for group in siblings.values())))


def _has_spread(group: Group) -> bool:
    return has_spread([rollout.reward for rollout in group])
