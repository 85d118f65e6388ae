"""Labels stored trees under other rewards, and makes pairs from these labels."""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from agent.protocols import protocol_of
from analysis.survival import Fresh, order_verdict
from annotation.pairs import sibling_pairs
from annotation.rows import Provenance, labelled, pair_rows
from annotation.scoring import node_scores
from rewards.guessable import guessable
from rewards.reward_model.model import RewardModel
from rewards.scheme import RewardScheme
from runs.annotation.reward_model import reward_model_for
from runs.annotation.stored_trees import StoredTree
from runs.annotation.tree_growing import label_digest
from runs.recipe import Recipe
from storage.records import Pair, TreeNode


@dataclass
class Relabeller:
    """Labels stored trees under a recipe's `rewards:` and `pairs:`."""

    recipe: Recipe
    fresh: Fresh = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)

    @cached_property
    def _scheme(self) -> RewardScheme:
        return self.recipe.scheme

    @cached_property
    def _model(self) -> RewardModel | None:
        """The reward model that orders the pairs; None if the labels do."""
        by_score = self.recipe.pairs.score == "reward_model"
        return reward_model_for(self.recipe) if by_score else None

    def label(self, tree: StoredTree) -> tuple[list[TreeNode], list[Pair]]:
        """Returns the nodes with new labels, and the new pairs."""
        recipe, rows, states, question = self.recipe, tree.nodes, tree.states, tree.question
        labels = self._scheme.labels(question, rows, states)
        prompt = protocol_of(recipe.agent).prompt
        scores = node_scores(self._model, rows, states, prompt) if self._model else None
        luck = guessable(question.question, question.answers)
        pairs, dropped = sibling_pairs(rows, labels, recipe.pairs, scores, guessable=luck)
        self.dropped.update(dropped)
        found = pair_rows(question, pairs, states, prompt, self._provenance(rows[0]))
        return labelled(rows, labels), self._confirmed(found)

    def _confirmed(self, pairs: list[Pair]) -> list[Pair]:
        """Drops pairs that fresh rollouts do not confirm, if `pairs.confirmed` is set."""
        if not self.recipe.pairs.confirmed:
            return pairs
        kept = []
        for pair in pairs:
            held = order_verdict(pair, self.fresh, self._scheme.rollout_value)
            if held == "kept":
                kept.append(pair)
            else:
                self.dropped[f"fresh_{held or 'missing'}"] += 1
        return kept

    def _provenance(self, root: TreeNode) -> Provenance:
        recipe = self.recipe
        return Provenance(
            seed=root.seed,
            cycle=root.cycle,
            policy_model=recipe.policy.model,
            policy_digest=root.policy_digest,
            judge_model=recipe.active_judge.model if recipe.active_judge else None,
            prompt_hash=root.prompt_hash,
            label_digest=label_digest(recipe, self._model),
            config_digest=recipe.decisive_digest,
        )
