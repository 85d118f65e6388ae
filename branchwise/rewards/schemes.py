"""The `rewards:` block of a recipe, and the scheme that it names."""

from collections.abc import Callable
from typing import Annotated

from pydantic import BeforeValidator, SerializeAsAny

from branchwise.base import NamedBlock
from branchwise.engines import Engine

from .arena import ArenaRewards
from .eval_rar import EvalRarRewards
from .evo_rag.scheme import EvoRagRewards
from .r1_searcher import R1SearcherRewards
from .scheme import SCHEMES, RecipeFacts, RewardScheme
from .settings import SchemeSettings
from .spre import Spre

OWN = (Spre, EvoRagRewards, ArenaRewards, R1SearcherRewards, EvalRarRewards)
"""Our own schemes, which register themselves when they are imported."""


def scheme_of(recipe: RecipeFacts, verifier: Engine | None = None) -> RewardScheme:
    """Builds the reward scheme of a recipe; see `RewardScheme` for `verifier`."""
    return SCHEMES[recipe.rewards.scheme](recipe, verifier)


def naming(fits: Callable[[type[RewardScheme]], bool]) -> str:
    """Returns the names of the schemes that fit, for the remedy of an error message."""
    return " or ".join(name for name, scheme in SCHEMES.items() if fits(scheme))


REWARDS_BLOCK = NamedBlock(
    "scheme",
    Spre.name,
    "reward scheme",
    lambda: {name: scheme.settings_class for name, scheme in SCHEMES.items()},
)

RewardSettings = Annotated[SchemeSettings, SerializeAsAny(), BeforeValidator(REWARDS_BLOCK)]
"""Type of a recipe's `rewards:`: the settings of any registered scheme."""
