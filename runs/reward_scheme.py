"""Which rewards a recipe asks for, and what they need."""

from functools import cache

from annotation.reward_schemes import EvoRagWorth, RewardScheme, SpreWorth
from annotation.verifier import Verifier
from engines.sampling import Engine
from retrieval.similarity import QuerySimilarity
from rewards.returns import EpisodeRewards
from runs.recipe import Recipe
from storage.errors import ConfigError


def reward_scheme_for(recipe: Recipe, verifier: Engine | None = None) -> RewardScheme:
    """The recipe's rewards.

    Args:
        verifier: open, if trees are grown and the recipe has one; stored verdicts need none.

    Raises:
        ConfigError: EVO-RAG's rewards lack the encoder of queries, or are to label the trees of
            another protocol, whose searches they would not know for searches.
    """
    if recipe.evo_rag is None:
        return SpreWorth(recipe.spre, recipe.estimator)
    if recipe.agent.protocol != "evo-rag":
        raise ConfigError(
            f"evo_rag: rewards the protocol evo-rag, but the trees are of {recipe.agent.protocol}; "
            "leave evo_rag out, or give a run of that protocol"
        )
    asked = None
    if verifier is not None and recipe.verifier is not None:
        asked = Verifier(verifier, recipe.verifier, recipe.seed)
    rewards = EpisodeRewards(
        recipe.evo_rag,
        recipe.agent.max_steps,
        _similarity(),
        verified=recipe.verifier is not None,
    )
    return EvoRagWorth(rewards, asked)


@cache
def _similarity() -> QuerySimilarity:
    """One for all: what one relabelling has encoded, the next need not."""
    return QuerySimilarity()
