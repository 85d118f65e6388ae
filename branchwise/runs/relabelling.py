"""Labels stored trees under other rewards, and keeps the settings of such a relabelling.

They are in `relabelled/<label>/labelling.yaml`. Fresh rollouts must be scored with the settings of
the labels; under another α they would not be comparable.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from branchwise.agent import protocol_of
from branchwise.analysis import Fresh, order_verdict
from branchwise.annotation import Labeller
from branchwise.base import (
    ConfigError,
    atomic_write_text,
    parse_settings,
    read_inside,
    terminal_safe_yaml,
)
from branchwise.rewards import RewardModel, RewardScheme
from branchwise.types import Pair, TreeNode

from .annotated_trees import StoredTree
from .folder import Run
from .recipe import Recipe
from .recipe_file import RECIPE_BYTES
from .trained_reward_model import reward_model_for
from .tree_growing import LABELLING, provenance_of

LABELS = "labelling.yaml"

DIGEST = "digest"
"""Key of the hash over the other entries."""


def with_label_settings(run: Run, recipe: Recipe, blocks: Collection[str] = LABELLING) -> Recipe:
    """Returns the run's recipe with the label settings of another one.

    The verifier stays the run's own, because the trees store its verdicts. If the other recipe has
    no verifier, the gold documents decide.

    Raises:
        ConfigError: If the scheme cannot label such trees.
    """
    update: dict[str, Any] = {block: getattr(recipe, block) for block in blocks}
    if recipe.verifier is None:
        update["verifier"] = None
    labelled = run.recipe.model_copy(update=update)
    if problems := list(labelled.scheme.problems()):
        raise ConfigError("\n".join(problems))
    return labelled


def keep_labelling(run: Run, label: str, recipe: Recipe) -> None:
    """Stores the blocks of `recipe` that decide labels and pairs."""
    blocks = recipe.model_dump(mode="json", include=set(LABELLING))
    blocks[DIGEST] = recipe.digest(*LABELLING)
    atomic_write_text(run.folder / _name(label), terminal_safe_yaml(blocks))


def labelling_of(run: Run, label: str | None) -> Recipe:
    """Returns the recipe of a relabelling; for label None, the run's own.

    Raises:
        ConfigError: If the file of the relabelling's settings is missing, cannot be read, or was
            changed afterwards.
    """
    if label is None:
        return run.recipe
    try:
        text = read_inside(run.folder, _name(label), RECIPE_BYTES).decode("utf-8")
        noted = parse_settings(text, LABELS)
        digest = noted.pop(DIGEST, None)
        recipe = Recipe.model_validate(run.recipe.model_dump(mode="json") | noted)
    except (OSError, ValueError, ConfigError) as error:
        raise ConfigError(
            f"{run.folder / _name(label)}: cannot be read as the settings of a relabelling "
            f"({error}); rerun `branchwise relabel --label {label}` with its settings, which calls "
            "no model"
        ) from error
    if digest != recipe.digest(*LABELLING):
        raise ConfigError(
            f"{run.folder / _name(label)}: was changed after the relabelling was made: restore it, "
            f"or rerun `branchwise relabel --label {label}` with its settings, which calls no model"
        )
    return recipe


def _name(label: str) -> str:
    return f"relabelled/{label}/{LABELS}"


@dataclass
class Relabeller:
    """Labels stored trees under a recipe's `rewards:` and `pairs:`."""

    recipe: Recipe
    fresh: Fresh = field(default_factory=dict)
    ties: bool = False
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
        policy_digest = tree.nodes[0].policy_digest
        labeller = Labeller(
            self._scheme,
            self.recipe.pairs,
            protocol_of(self.recipe.agent).prompt,
            provenance_of(self.recipe, policy_digest, self._model),
            self._model,
            self.ties,
        )
        nodes, pairs, dropped = labeller.label(tree.question, tree.nodes, tree.states)
        self.dropped.update(dropped)
        return nodes, self._confirmed(pairs)

    def _confirmed(self, pairs: list[Pair]) -> list[Pair]:
        """Drops pairs that fresh rollouts do not confirm, if `pairs.confirmed` is set."""
        if not self.recipe.pairs.confirmed:
            return pairs
        confirmed = []
        for pair in pairs:
            verdict = order_verdict(pair, self.fresh, self._scheme.rollout_value)
            if verdict == "kept":
                confirmed.append(pair)
            else:
                self.dropped[f"fresh_{verdict or 'missing'}"] += 1
        return confirmed
