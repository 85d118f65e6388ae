"""All reward schemes, by their name in `rewards: {scheme: …}`."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from branchwise.base import did_you_mean
from branchwise.engines import Engine

from .arena import Arena
from .eval_rar import EvalRar
from .evo_rag.scheme import EvoRag
from .r1_searcher import R1Searcher
from .scheme import RecipeFacts, RewardScheme
from .settings import SchemeSettings
from .spre import Spre

SCHEMES: dict[str, type[RewardScheme]] = {
    "spre": Spre,
    "evo-rag": EvoRag,
    "arena": Arena,
    "r1-searcher": R1Searcher,
    "eval-rar": EvalRar,
}

DEFAULT = "spre"
"""Scheme of a `rewards:` block without a name."""


def scheme_of(recipe: RecipeFacts, verifier: Engine | None = None) -> RewardScheme:
    """Builds the reward scheme of a recipe; see `RewardScheme` for `verifier`."""
    return SCHEMES[recipe.rewards.scheme](recipe, verifier)


def naming(fits: Callable[[type[RewardScheme]], bool]) -> str:
    """Returns the names of the schemes that fit, for the remedy of an error message."""
    return " or ".join(name for name, scheme in SCHEMES.items() if fits(scheme))


def settings_class(block: Mapping[str, Any]) -> type[SchemeSettings]:
    """Returns the settings class of the scheme that a `rewards:` block names.

    Raises:
        ValidationError: If the scheme is unknown.
    """
    name = block.get("scheme", DEFAULT)
    if isinstance(name, str) and name in SCHEMES:
        return SCHEMES[name].settings_class
    hint = did_you_mean(str(name), SCHEMES) or f"; use {' or '.join(SCHEMES)}"
    unknown = PydanticCustomError("unknown_scheme", "no such reward scheme{hint}", {"hint": hint})
    fault = InitErrorDetails(type=unknown, loc=("scheme",), input=name)
    raise ValidationError.from_exception_data("rewards", [fault])


def _validated(block: object) -> object:
    return settings_class(block).model_validate(block) if isinstance(block, Mapping) else block


RewardSettings = Annotated[SchemeSettings, SerializeAsAny(), BeforeValidator(_validated)]
"""Type of a recipe's `rewards:`: the settings of any registered scheme.

A pydantic union would have a fixed list; this type also accepts schemes registered later.
"""
