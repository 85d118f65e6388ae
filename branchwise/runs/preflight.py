"""Checks everything outside the recipe that it needs, before a stage writes or pays for anything.

A check is a block of the recipe and a function that raises if a resource of the block is missing.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from branchwise.agent import AgentProtocol, require_token_ids
from branchwise.base import (
    LOCAL_DISK,
    BranchwiseError,
    ConfigError,
    Faults,
    network_mount,
    proxy_for,
    shown_url,
    terminal_safe,
)
from branchwise.engines import (
    FleetEngine,
    ModelSettings,
    Sampling,
    check_vllm,
    each_server,
    served_files,
)
from branchwise.evaluation import PolicyUnderTest
from branchwise.retrieval import HttpSettings, RetrievalSettings
from branchwise.rewards import reward_model_digest
from branchwise.sources import Data, existing
from branchwise.weights import check_embedded, policy_files, validated_policy_files

from .endpoint_check import (
    Ask,
    answer_judge_call,
    check_call,
    judge_call,
    plain_call,
    policy_call,
    verifier_call,
)
from .factories import WARM_START, engine_for, model_folder
from .recipe import JUDGE, LimitSettings, Recipe
from .stage import StageContext

Check = tuple[str, Callable[[], object]]

CHECK_TIMEOUT_S = 30.0
"""Longest wait for a check that asks for no reply of a model."""


def require(checks: Iterable[Check]) -> None:
    """Runs the checks; the first failure is raised."""
    for _, check in checks:
        check()


def failed_checks(checks: Iterable[Check]) -> Iterator[str]:
    """Yields the messages of all failed checks."""
    for block, check in checks:
        try:
            check()
        except BranchwiseError as error:
            yield f"{block}: {error}"


def require_matplotlib() -> None:
    """Checks for the plot library before anything is paid for.

    Raises:
        ConfigError: If it is not installed.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError(
            "plots need matplotlib: run `make setup EXTRAS=study` or "
            "`pip install 'branchwise[study]'`"
        )


def data_files(recipe: Recipe) -> Iterator[Check]:
    """Yields checks that files of questions and passages exist; the stage checks their content."""
    for block, settings in recipe.question_sets():
        if settings.questions is not None and settings.source not in {"atlas", "hub"}:
            yield block, partial(_check_exists, settings.questions, f"{block}.questions")
    corpus = recipe.data.corpus
    for path in (corpus,) if isinstance(corpus, str) else corpus or ():
        yield "data", partial(_check_exists, path, "data.corpus")


def _check_exists(path: str, setting: str) -> None:
    faults = Faults()
    existing(path, setting, faults, folder=setting == "data.corpus")
    faults.raise_any()


def evaluated(recipe: Recipe, run: Path, *, policy_works: bool = True) -> Iterator[Check]:
    """Yields checks of the models that an evaluation calls, by setting.

    An endpoint gets the first call of each. Models that the run will train need not exist yet.

    Args:
        recipe: Recipe to check.
        run: Run folder.
        policy_works: Whether the recipe's policy passed its own check. If not, it is not checked
            again at the temperature of the evaluation.
    """
    models = recipe.evaluated_models(run.name)
    calls = {
        f"evaluation.policies.{name}" if recipe.evaluation.policies else "policy": policy_call(
            policy.protocol, policy.sampling, recipe.seed
        )
        for name, policy in recipe.policies_under_test(run.name).items()
    }
    if recipe.answer_judge is not None and recipe.evaluation.judge is not None:
        calls[JUDGE] = answer_judge_call(recipe.answer_judge, recipe.evaluation.judge.prompt)
    to_train = model_folder(run, "")
    for setting, model in models.items():
        temperature = recipe.evaluation.temperature
        asks_alike = temperature == model.temperature or model.engine != "openai"
        if model == recipe.policy and (asks_alike or not policy_works):
            continue  # `servers` and `weights` check it
        trained = Path(model.model).is_relative_to(to_train)
        if model.engine == "openai" or (model.addresses and not trained):
            call = calls.get(setting, plain_call(Sampling.of(model, temperature)))
            yield setting, partial(_check_endpoint, setting, model, recipe.limits, call, draw=True)
        elif model.engine == "vllm" != recipe.policy.engine and not model.addresses:
            yield setting, partial(check_vllm, model)
        if not trained:
            yield from model_files(setting, model)


def cannot_serve_trained_reason(policy: ModelSettings) -> str | None:
    """Returns the reason that a trained policy could not be served, or None.

    A server that another process started keeps its own weights.
    """
    if policy.engine == "openai":
        return (
            "policy.engine is `openai`, whose server cannot load the trained policies: use "
            "openvino or vllm"
        )
    if policy.engine == "vllm" and policy.addresses:
        return (
            "policy.base_url names a running server, which cannot load the trained policies: "
            "remove it, so that every stage starts its own server"
        )
    return None


def model_files(role: str, model: ModelSettings) -> Iterator[Check]:
    """Yields the check of a model's files, if it runs on this machine."""
    if model.engine == "openvino":
        yield role, partial(_runs_embedded, model.model)
    elif model.engine == "vllm":
        yield role, partial(_sound_if_ours, model.model)


def reward_model_files(folder: str | None) -> Iterator[Check]:
    """Yields the check of a reward model's files, if there is one."""
    if folder is not None:
        yield "reward_model", partial(reward_model_digest, Path(folder))


def start_files(setting: str, policy: ModelSettings, start: str) -> Iterator[Check]:
    """Yields the check that the embedded engine, if the policy uses it, can run what is trained.

    With an endpoint, checks that the weights are named.

    Args:
        setting: Setting that names `start`.
        policy: Settings of the recipe's policy.
        start: Model to train.
    """
    if policy.engine == "openvino":
        yield setting, partial(_runs_embedded, start)
    elif policy.engine == "openai" and start == policy.model:
        yield setting, partial(_names_weights, start)


def _names_weights(model: str) -> None:
    try:
        policy_files(model)
    except ConfigError as error:
        raise ConfigError(
            f"policy.weights is not set: name the weights that the endpoint serves ({error})"
        ) from error


def _runs_embedded(model: str) -> None:
    if Path(model).name == WARM_START and not Path(model).exists():
        raise ConfigError(f"{model} does not exist yet: `make warm-start` makes it")
    check_embedded(validated_policy_files(model))


def _sound_if_ours(model: str) -> None:
    if served_files(model) is not None:
        validated_policy_files(model)


def servers(recipe: Recipe, *, draw: bool = False) -> Iterator[Check]:
    """Yields checks of all servers that an annotation needs.

    Args:
        recipe: Recipe to check.
        draw: Whether to make every model's first call. An endpoint may list its models and refuse
            to run them.
    """
    policy = PolicyUnderTest(recipe.policy, recipe.agent, recipe.policy.temperature)
    yield from policy_server("policy", policy, recipe.seed, recipe.limits, draw=draw)
    calls: dict[str, Ask] = {}
    if recipe.active_judge is not None:
        calls["judge"] = judge_call(policy.protocol, recipe.active_judge)
    if recipe.active_verifier is not None:
        calls["verifier"] = verifier_call(policy.protocol, recipe.active_verifier, recipe.seed)
    models = recipe.annotating_models
    for role, call in calls.items():
        yield from _server(role, models[role], recipe.limits, call, draw=draw)
    yield from search_server(recipe.retrieval)


def policy_server(
    setting: str, policy: PolicyUnderTest, seed: int, limits: LimitSettings, *, draw: bool = False
) -> Iterator[Check]:
    """Yields the check of a policy's endpoint, or of vLLM if a stage must start it."""
    protocol = policy.protocol
    call = policy_call(protocol, policy.sampling, seed)
    continued = protocol if protocol.continues else None
    yield from _server(setting, policy.model, limits, call, continued, draw=draw)


def _server(
    role: str,
    model: ModelSettings,
    limits: LimitSettings,
    call: Ask,
    continued: AgentProtocol | None = None,
    *,
    draw: bool = False,
) -> Iterator[Check]:
    if model.engine == "vllm" and not model.addresses:
        yield role, partial(check_vllm, model)
    elif model.engine != "openvino":
        yield role, partial(_check_endpoint, role, model, limits, call, continued, draw=draw)


def search_server(retrieval: RetrievalSettings) -> Iterator[Check]:
    """Yields the check of the search server, if the recipe has one."""
    if isinstance(retrieval, HttpSettings):
        yield "retrieval", partial(_search, retrieval.url)


def plaintext_proxy_warnings(
    retrieval: RetrievalSettings, models: Mapping[str, ModelSettings]
) -> Iterator[str]:
    """Yields a warning for each server that is reached unencrypted through a proxy."""
    if isinstance(retrieval, HttpSettings):
        yield from _proxy_warning("retrieval.url", retrieval.url, "query and passage")
    for role, model in models.items():
        for url in model.addresses:
            yield from _proxy_warning(f"{role}.base_url", url, "prompt, reply and the key")


def log_notes(
    context: StageContext, models: Mapping[str, ModelSettings], data: Data | None = None
) -> None:
    """Logs what was noted about data and run folder, and proxies that can read the prompts."""
    recipe = context.recipe
    for line in data.describe_notes() if data else ():
        context.log(f"data: {line}")
    for line in (
        *network_folder_warning(context.run),
        *plaintext_proxy_warnings(recipe.retrieval, models),
        *unused_models(recipe),
    ):
        context.log(f"note: {line}")


def network_folder_warning(run: Path) -> Iterator[str]:
    """Yields a line if a run folder is, or will be, on a network file system."""
    if (mount := network_mount(run)) is not None:
        yield (
            f"{terminal_safe(str(run))} is on a network file system ({mount.kind}, mounted at "
            f"{terminal_safe(mount.point)}), where locks and the ledger are not reliable: "
            f"{LOCAL_DISK}"
        )


def unused_models(recipe: Recipe) -> Iterator[str]:
    """Yields a line for each model of the recipe that nothing uses yet."""
    if recipe.judge and not recipe.active_judge and not recipe.answer_judge:
        yield (
            "judge: nothing uses it. Set mcts.evaluator: judge, set evaluation.judge, or remove it"
        )
    if recipe.reward_model and not recipe.active_reward_model:
        yield (
            "reward_model: nothing uses it. Set mcts.evaluator or pairs.score to reward_model, or "
            "remove it"
        )


def _proxy_warning(setting: str, url: str | None, visible_texts: str) -> Iterator[str]:
    if url is None or urlsplit(url).scheme != "http":
        return
    with suppress(ConfigError):  # `servers` reports an invalid proxy
        if (proxy := proxy_for(url)) is not None:
            yield (
                f"{setting}: {shown_url(url)} is unencrypted, so the environment's proxy "
                f"{proxy.address} can read every {visible_texts}: use https, or add the host to "
                "NO_PROXY"
            )


def _check_endpoint(
    block: str,
    model: ModelSettings,
    limits: LimitSettings,
    call: Ask,
    continued: AgentProtocol | None = None,
    *,
    draw: bool = False,
) -> None:
    """Checks an endpoint, with a role's first `call` if needed; all servers of a fleet.

    Of a fleet, only some must answer, except for `draw`.

    Args:
        block: Block of the recipe with the model's settings.
        continued: Protocol that needs the endpoint's token ids.
    """
    from branchwise.engines import OpenAIEngine, server_kind

    reads_reply = draw
    # Vendors list models that reject some settings.
    draw = draw or server_kind(model) != "auto"
    # A whole reply may take as long as in the run.
    timeout_s = limits.timeout_s if draw else min(limits.timeout_s, CHECK_TIMEOUT_S)
    hurried = limits.model_copy(
        update={"max_concurrency": 1, "timeout_s": timeout_s, "deadline_s": timeout_s}
    )

    async def check() -> None:
        # A vLLM engine checks its endpoint when it is entered.
        async with engine_for(model, hurried) as engine:
            if reads_reply and isinstance(engine, FleetEngine):
                engine.require_all()
            for server in each_server(engine):
                if isinstance(server, OpenAIEngine) and not draw:
                    await server.check()
                if continued is not None:
                    require_token_ids(server, continued)
                if draw:
                    await check_call(server, call, block, reads_reply=reads_reply)

    asyncio.run(check())


def _search(url: str | None) -> None:
    from branchwise.retrieval import HttpRetriever

    asyncio.run(HttpRetriever(url, CHECK_TIMEOUT_S, attempts=1).search("check", 1))
