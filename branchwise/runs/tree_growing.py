"""Grows trees with the annotator and the engines of a recipe."""

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import partial

from branchwise.agent import Environment, protocol_of
from branchwise.annotation import (
    AnnotatedQuestion,
    Annotator,
    Evaluator,
    Judge,
    JudgeEvaluator,
    Labeller,
    Provenance,
    RewardModelEvaluator,
    RolloutEvaluator,
)
from branchwise.base import digest_of, map_concurrently
from branchwise.engines import Engine, Sampling
from branchwise.mcts import TreeSettings
from branchwise.rewards import RewardModel, RewardScheme, scheme_of
from branchwise.storage import Ledger
from branchwise.types import Question

from .cost_bounds import CostRange, call_cost, prompt_lengths, tree_calls
from .factories import replaying_engine
from .prepared import Prepared
from .progress import Progress
from .recipe import Recipe
from .stage import Gate
from .trained_reward_model import reward_model_for

LABELLING = ("rewards", "pairs", "reward_model")
"""Blocks of the recipe that decide labels and pairs."""


@dataclass(frozen=True)
class Reread:
    """An earlier run whose stored replies are read again: its ledger, and digests by role."""

    ledger: Ledger
    digests: Mapping[str, str]

    def of(self, role: str) -> tuple[Ledger, str] | None:
        """Returns the ledger and a role's digest there; None if the run has no such role."""
        return (self.ledger, self.digests[role]) if role in self.digests else None


async def grow_questions(
    prepared: Prepared,
    pending: Iterable[Question],
    ledger: Ledger,
    gate: Gate,
    progress: Progress,
    reread: Reread | None = None,
) -> AsyncGenerator[AnnotatedQuestion, None]:
    """Annotates pending questions until the gate closes; yields them as they finish.

    As a limit nears, fewer questions begin, so that those in progress can be finished.

    Args:
        reread: An earlier run whose replies are read again instead of being paid for.
    """
    bound, limits = bound_of_tree(prepared), prepared.recipe.limits

    async def work(question: Question) -> AnnotatedQuestion:
        progress.in_flight += 1
        try:
            report_progress = partial(progress.partial.__setitem__, question.id)
            annotated = await annotator.annotate(question, report_progress)
        finally:
            progress.in_flight -= 1
            progress.partial.pop(question.id, None)
        rewards = [node.reward for node in annotated.nodes if node.reward is not None]
        progress.done += 1
        progress.failed += annotated.failure is not None
        progress.pairs += len(annotated.pairs)
        progress.reward_sum += sum(rewards)
        progress.rewarded += len(rewards)
        return annotated

    async with AsyncExitStack() as stack:
        engines: dict[str, Engine] = {}
        for role, model in prepared.models.items():
            engine = (
                prepared.open_engine(model, ledger, gate, reread.of(role) if reread else None)
                if prepared.replayed is None
                else replaying_engine(model, prepared.replayed[role], ledger)
            )
            engines[role] = await stack.enter_async_context(engine)
            progress.watch(engines[role])
        annotator = annotator_for(prepared, engines)

        def at_once() -> int:
            finished = progress.done - progress.resumed_from
            begun = sum(progress.partial.values())
            most = limits.questions_in_flight(prepared.models["policy"])
            return gate.fitting(most, finished, begun, bound)

        # Closed here, because the work must end before engines and ledger close.
        async with aclosing(map_concurrently(gate.admit(pending), work, at_once)) as finished:
            async for annotated in finished:
                yield annotated


def bound_of_tree(prepared: Prepared) -> CostRange:
    """Returns bounds of the cost of a question's tree."""
    recipe, protocol, models = prepared.recipe, prepared.protocol, prepared.models
    policy = models["policy"]
    prompt = prompt_lengths(protocol, prepared.data, recipe.retrieval.top_k, policy.max_new_tokens)
    low, high, ends = tree_calls(recipe.mcts, protocol.max_calls)
    cost = call_cost(policy, prompt, (low, high), tokens=protocol.continues)
    if "judge" in models:
        cost += call_cost(models["judge"], prompt, (0, recipe.mcts.iterations))
    if "verifier" in models:
        cost += call_cost(models["verifier"], prompt, (0, ends))
    return cost


def annotator_for(prepared: Prepared, engines: Mapping[str, Engine]) -> Annotator:
    """Returns the annotator.

    Args:
        prepared: What the stage works with.
        engines: Open engines of its models, by role.
    """
    recipe, environment = prepared.recipe, prepared.environment(engines["policy"])
    reward_model = reward_model_for(recipe)
    scored_by = reward_model if recipe.pairs.score == "reward_model" else None
    scheme = scheme_of(recipe, engines.get("verifier"))
    return Annotator(
        environment=environment,
        evaluator=_evaluator(recipe, environment, scheme, engines.get("judge"), reward_model),
        search=recipe.mcts,
        sampling=Sampling.of(recipe.policy, recipe.mcts.temperature),
        labeller=Labeller(
            scheme,
            recipe.pairs,
            environment.prompt,
            provenance_of(recipe, environment.engine.digest, scored_by),
            scored_by,
        ),
    )


def provenance_of(recipe: Recipe, policy_digest: str, scored_by: RewardModel | None) -> Provenance:
    """Returns the provenance of rows that a recipe's policy and labels make."""
    return Provenance(
        seed=recipe.seed,
        cycle=recipe.cycle,
        policy_model=recipe.policy.model,
        policy_digest=policy_digest,
        judge_model=recipe.active_judge.model if recipe.active_judge else None,
        prompt_hash=protocol_of(recipe.agent).prompt_hash,
        label_digest=label_digest(recipe, scored_by),
        config_digest=recipe.decisive_digest,
    )


def label_digest(recipe: Recipe, scored_by: RewardModel | None) -> str:
    """Returns the hash of everything that decides labels and pairs.

    That is: the settings, whether a verifier is used, and the reward model.
    """
    resolved = recipe.model_copy(update={"rewards": recipe.scheme.resolved})
    verified = str(recipe.active_verifier is not None)
    scored = [] if scored_by is None else [scored_by.digest]
    return digest_of(resolved.digest(*LABELLING), verified, *scored)[:12]


def _evaluator(
    recipe: Recipe,
    environment: Environment,
    scheme: RewardScheme,
    judge: Engine | None,
    reward_model: RewardModel | None,
) -> Evaluator | None:
    """Returns the evaluator of inner nodes; None for playouts and chains."""
    search = recipe.mcts
    if not isinstance(search, TreeSettings) or search.uses("playout"):
        return None
    if judge is not None and recipe.active_judge is not None:
        whole_replies = environment.protocol.shows_whole_replies
        return JudgeEvaluator(
            Judge(judge, recipe.active_judge, recipe.seed, responses=whole_replies),
            scheme,
            search.judge_terminals,
        )
    if search.uses("reward_model") and reward_model is not None:
        return RewardModelEvaluator(reward_model, environment.prompt)
    sampling = Sampling.of(recipe.policy, search.rollout_temperature)
    return RolloutEvaluator(environment, sampling, search.rollouts, scheme)
