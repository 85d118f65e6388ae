"""The recipe: all settings, and the digests that identify a run."""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from functools import reduce
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BeforeValidator,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from branchwise.agent import AGENT_BLOCK, AgentBlock, AgentSettings, ReasonRagAgentSettings
from branchwise.analysis import LABELS
from branchwise.annotation import PairSettings
from branchwise.base import NamedBlock, Settings, shared_settings
from branchwise.engines import JudgeSettings, ModelSettings, server_kind
from branchwise.evaluation import (
    EvaluatedPolicy,
    EvaluationSettings,
    PolicyName,
    PolicyUnderTest,
)
from branchwise.mcts import SEARCH_SETTINGS, SearchSettings, TreeSettings
from branchwise.retrieval import (
    Bm25Settings,
    HttpSettings,
    RetrievalBlock,
    RetrievalSettings,
)
from branchwise.rewards import RewardScheme, RewardSettings, SpreSettings, scheme_of
from branchwise.sources import OWN_SOURCES, AtlasSettings, DataBlock, SetSettings, Split
from branchwise.training import TrainingSettings


class CycleCounts(Settings):
    """Most cycles per stage; 0 skips a stage.

    Attributes:
        discovery: Cycles of the first stage.
        refinement: Cycles of the second stage.
    """

    discovery: int = Field(default=1, ge=0)
    refinement: int = Field(default=1, ge=0)

    @property
    def total(self) -> int:
        """Largest number of cycles of both stages together."""
        return self.discovery + self.refinement


class CurriculumSettings(Settings):
    """Discovery, then Refinement, each in cycles (EVO-RAG sections 3.4, 3.5 and 3.7).

    Attributes:
        cycles: Most cycles of trees, reward model, policy training and dev evaluation.
        patience: Cycles in a row without a higher dev EM after which a stage stops.
        questions: Questions per cycle, disjoint from earlier cycles; defaults to `data.limit`.
        dev_questions: Questions of split `dev` that every policy is evaluated on.
        reward_model: Whether each cycle trains a reward model. With `pairs.score: reward_model` its
            scores decide the pairs; otherwise it is only reported.
    """

    cycles: CycleCounts = CycleCounts()
    patience: int = Field(default=2, ge=1)
    questions: int | None = Field(default=None, ge=1)
    dev_questions: int = Field(default=200, ge=1)
    reward_model: bool = True


Wanted = Annotated[int, Field(ge=1, le=10**9)]


class DifficultySettings(Settings):
    """How `branchwise select` rates questions and draws stages (R1-Searcher section 2.1).

    Attributes:
        policy: Rater, in the form of an entry of `evaluation.policies`; defaults to the recipe's
            policy, and its temperature to 1.
        rollouts: Most rollouts per question. Sampling ends at the first correct one (cover-EM);
            without one the question is `unsolved`.
        easy: Most rollouts that an `easy` question needs for its first correct one.
        medium: Most rollouts that a `medium` question needs; one that needs more is `difficult`.
        stages: Name → label → number of questions, such as `{"1": {medium: 350}}`. A label may name
            a source: `hotpotqa/medium`. If there are fewer questions, proportions are kept.
            Defaults to the paper's.
    """

    policy: EvaluatedPolicy | None = None
    rollouts: int = Field(default=32, ge=1, le=10_000)
    easy: int = Field(default=9, ge=1)
    medium: int = Field(default=20, ge=1)
    stages: dict[PolicyName, Annotated[dict[str, Wanted], Field(min_length=1)]] = Field(
        default={"1": {"medium": 350}, "2": {"medium": 3648, "difficult": 4500}}
    )

    @field_validator("stages")
    @classmethod
    def _check_buckets(cls, stages: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        names = [name for numbers in stages.values() for name in numbers]
        if unknown := [name for name in names if name.rpartition("/")[2] not in LABELS]:
            raise ValueError(f"no such label ({unknown[0]}). Choose among {', '.join(LABELS)}")
        if len({"/" in name for name in names}) > 1:
            raise ValueError("names sources for some labels only. Name them for all, or for none")
        return stages


S = TypeVar("S", bound=Settings)
M = TypeVar("M", bound=ModelSettings)

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$"
"""Pattern of folder names."""


SEARCH_BLOCK = NamedBlock("kind", "tree", "kind of search", lambda: SEARCH_SETTINGS)

SearchBlock = Annotated[SearchSettings, SerializeAsAny(), BeforeValidator(SEARCH_BLOCK)]
"""Type of a recipe's `mcts:`: the settings of its kind."""

MAY_CHANGE = frozenset({"limits", "training", "evaluation", "curriculum", "difficulty", "stages"})
"""Blocks that may change when an annotation resumes; all others define the rows."""

MODELS = ("policy", "judge", "verifier")
"""Blocks that name a model."""

StageName = Literal[
    "warm-start", "select", "annotate", "train-sft", "train-dpo", "train-grpo", "eval"
]

JUDGE = "evaluation.judge"
"""Setting that names the judge of answers."""

ENDPOINT = {
    *("base_url", "base_urls", "identity", "replicas", "gpus_per_replica", "api_key_env"),
    *("price_per_million", "request", "server", "server_args", "structured_output", "weights"),
}
"""Settings that a policy or rater at another endpoint does not inherit, such as the key."""

HOSTED_MODEL = {"price_per_million", "weights"}
"""Settings that another model of the same hosted endpoint does not inherit."""

_USUAL = ModelSettings()


def identity_settings(recipe: "Recipe") -> dict[str, Any]:
    """Returns the settings of a recipe that identify a run, as plain values.

    The number of questions is not included: it changes no row, and `runs.inputs` checks the
    questions.
    """
    settings = settings_by_identity(recipe)
    del settings["data"]["limit"]
    return {name: settings[name] for name in settings if name not in MAY_CHANGE}


def settings_by_identity(recipe: "Recipe") -> dict[str, Any]:
    """Returns all settings as plain values; models and search server have no address."""
    models = {name: getattr(recipe, name) for name in MODELS}
    identities = {name: identity(model) for name, model in models.items() if model is not None}
    identities["retrieval"] = retrieval_identity(recipe.retrieval)
    return recipe.model_dump(mode="json") | identities


def identity(model: ModelSettings) -> dict[str, Any]:
    """Returns a model's settings that decide its replies, as plain values.

    Price, key and address are reset. Weights identify a vLLM server; any other endpoint is
    identified by `ModelSettings.endpoint_identity` alone.
    """
    passing = {"price_per_million", "api_key_env", "base_url", "base_urls", "identity"}
    passing |= {"replicas", "gpus_per_replica"}
    settings = model.model_dump(mode="json")
    settings["request"]["headers_env"] = {}  # names of variables with keys
    settings |= _USUAL.model_dump(mode="json", include=passing)
    if model.engine == "openai":
        # The kind of server that the address shows, because another address may not show it.
        settings |= {
            "identity": model.endpoint_identity,
            "server": server_kind(model.at_each_server[0]),
        }
    return settings


def retrieval_identity(retrieval: RetrievalSettings) -> dict[str, Any]:
    """Returns the settings that decide the results of a search, as plain values.

    A search server is not included, because the digest of its index identifies it.
    """
    passing = {"url", "identity"} if isinstance(retrieval, HttpSettings) else None
    return retrieval.model_dump(mode="json", exclude=passing)


class LimitSettings(Settings):
    """Limits of a run.

    Attributes:
        max_concurrency: Most calls in flight per server; fewer if it is overloaded.
        max_questions_in_flight: Questions processed at once. Set it above `max_concurrency`, or
            slots stay idle. Defaults to 256 per server and 24 in the embedded engine.
        kv_cache_gib: GiB of the embedded engine's key-value cache; an embedded judge has its own.
            One GiB holds about 23,000 tokens of the packaged model. Prompts of a tree that do not
            fit are recomputed.
        timeout_s: Seconds per attempt at a call.
        deadline_s: Seconds from a call's first attempt, including retries and the waits between
            them; at least `timeout_s`.
        max_usd: Dollar limit per run folder, over all attempts and stages; each curriculum cycle
            has its own folder. Only models with a `price_per_million` cost money. At the limit,
            calls in flight finish and the stage exits with 3.
        max_tokens: Token limit per run folder: prompts and completions of all models. Otherwise as
            `max_usd`.
        max_hours: Limit per attempt at one stage that calls models; unlimited by default. Trainings
            on stored data ignore it.
        max_failed_share: Share of failed questions above which a stage exits with 4; for
            `train-grpo`, share of a batch's rollouts above which the training ends with 1.
    """

    max_concurrency: int = Field(default=64, ge=1)
    max_questions_in_flight: int | None = Field(default=None, ge=1)
    kv_cache_gib: int = Field(default=4, ge=1)
    timeout_s: float = Field(default=120.0, gt=0)
    deadline_s: float = Field(default=900.0, gt=0)
    max_usd: float | None = Field(default=None, gt=0)
    max_tokens: int | None = Field(default=None, gt=0)
    max_hours: float | None = Field(default=None, gt=0)
    max_failed_share: float = Field(default=0.05, ge=0, le=1)

    def questions_in_flight(self, policy: ModelSettings) -> int:
        """Returns the number of questions that a policy works on at once."""
        fitting = 24 if policy.engine == "openvino" else 256 * len(policy.at_each_server)
        return self.max_questions_in_flight or fitting


class EvaluationConfig(EvaluationSettings):
    """Evaluation and its questions.

    Attributes:
        set: Question set, without `limit`; defaults to the run's own source, or to each source of
            its mix.
        mix: Several sets instead of `set`, together up to `limit`; the table counts by source.
        split: Split to draw from if neither is set. Choose settings on `dev`; report `test`.
    """

    set: SetSettings | None = None
    mix: tuple[SetSettings, ...] = ()
    split: Split = "test"


class Recipe(Settings):
    """All settings of a run; its `provenance.json` holds the resolved recipe.

    Attributes:
        name: Run name. Output goes to `datasets/<name>` and `models/<name>`.
        seed: Random seed for question sampling, tree search and training.
        stages: Stages of `make all`, in order.
        rewards: Reward scheme and its settings.
        verifier: Model that judges whether the evidence suffices when the policy refuses. Defaults
            to the gold documents.
        reward_model: Folder written by `branchwise train-rm`, for `mcts.evaluator` and
            `pairs.score`.
        cycle: Curriculum cycle of this run; 0 outside a curriculum. It is part of a tree's id.
    """

    name: str = Field(pattern=NAME_PATTERN)
    seed: int = 0
    cycle: int = Field(default=0, ge=0, le=9999)
    stages: tuple[StageName, ...] = Field(default=("annotate", "train-dpo", "eval"), min_length=1)
    data: DataBlock = AtlasSettings()
    retrieval: RetrievalBlock = Bm25Settings()
    agent: AgentBlock = ReasonRagAgentSettings()
    policy: ModelSettings = ModelSettings()
    judge: JudgeSettings | None = None
    mcts: SearchBlock = TreeSettings()
    rewards: RewardSettings = SpreSettings()
    verifier: JudgeSettings | None = None
    reward_model: str | None = None
    pairs: PairSettings = PairSettings()
    limits: LimitSettings = LimitSettings()
    training: TrainingSettings = TrainingSettings()
    evaluation: EvaluationConfig = EvaluationConfig()
    curriculum: CurriculumSettings = CurriculumSettings()
    difficulty: DifficultySettings = DifficultySettings()

    @model_validator(mode="after")
    def _agents_of_policies_fit(self) -> Self:
        """Reports wrong agent settings of evaluated policies and the rater at their place."""
        policies = {
            ("evaluation", "policies", name): policy
            for name, policy in self.evaluation.policies.items()
        }
        single_policies = {
            ("evaluation", "baseline_model"): self.evaluation.baseline_model,
            ("difficulty", "policy"): self.difficulty.policy,
        }
        faults: list[InitErrorDetails] = []
        for place, policy in (policies | single_policies).items():
            try:
                if policy is not None:
                    agent_with_protocol(self.agent, policy.agent)
            except ValidationError as error:
                faults += [
                    InitErrorDetails(
                        type=PydanticCustomError(fault["type"], "{text}", {"text": fault["msg"]}),
                        loc=(*place, "agent", *fault["loc"]),
                        input=fault["input"],
                    )
                    for fault in error.errors()
                ]
        if faults:
            raise ValidationError.from_exception_data("Recipe", faults)
        return self

    def with_comparison(self) -> "Recipe":
        """Returns this recipe with the default of `rewards.comparison` for its data filled in."""
        if self.rewards.comparison is not None:
            return self
        is_own = {part.source for part in self.data.mix or (self.data,)} <= OWN_SOURCES
        comparison = "strict" if is_own else "squad"
        rewards = self.rewards.model_copy(update={"comparison": comparison})
        return self.model_copy(update={"rewards": rewards})

    @property
    def scheme(self) -> RewardScheme:
        """The reward scheme of `rewards:`."""
        return scheme_of(self)

    @property
    def active_judge(self) -> JudgeSettings | None:
        """Returns the judge that the search uses, or None."""
        return self.judge if self.mcts.uses("judge") else None

    @property
    def active_verifier(self) -> JudgeSettings | None:
        """Returns the verifier of refusals, or None if it is not used."""
        return self.verifier if self.scheme.asks_verifier else None

    @property
    def annotating_models(self) -> dict[str, ModelSettings]:
        """Returns the models that `annotate` calls, by role."""
        models = {
            "policy": self.policy,
            "judge": self.active_judge,
            "verifier": self.active_verifier,
        }
        return {role: model for role, model in models.items() if model is not None}

    @property
    def active_reward_model(self) -> str | None:
        """Returns the reward model that search or pairs use, or None."""
        searched = self.mcts.uses("reward_model")
        return self.reward_model if searched or self.pairs.score == "reward_model" else None

    @property
    def usual_policy(self) -> PolicyUnderTest:
        """The recipe's own policy, as an evaluation without `evaluation.policies` runs it."""
        return PolicyUnderTest(self.policy, self.agent, self.evaluation.temperature)

    def policies_under_test(self, run: str) -> dict[str, PolicyUnderTest]:
        """Returns the policies of `evaluation.policies`, by name.

        Args:
            run: Name of the run; replaces `{run}` in model names.
        """
        named = self.evaluation.policies or {"policy": EvaluatedPolicy(model=self.policy.model)}
        greedy = self.evaluation.temperature
        return {name: self._under_test(policy, run, greedy) for name, policy in named.items()}

    def rater(self, run: str) -> PolicyUnderTest:
        """Returns the policy that rates questions; see `policies_under_test` for `run`."""
        rater = self.difficulty.policy or EvaluatedPolicy(model=self.policy.model)
        return self._under_test(rater, run, 1.0)

    def reader(self, run: str) -> PolicyUnderTest:
        """Returns the policy of the baselines; see `policies_under_test` for `run`."""
        untrained = "packaged" if self.policy.engine == "openvino" else self.policy.model
        reader = self.evaluation.baseline_model or EvaluatedPolicy(model=untrained)
        return self._under_test(reader, run, self.evaluation.temperature)

    def _under_test(self, policy: EvaluatedPolicy, run: str, temperature: float) -> PolicyUnderTest:
        # Only the settings that the block names: all others are those of `policy:` and `agent:`,
        # and those of the endpoint only if it is the same one.
        settings = {name: getattr(policy, name) for name in policy.model_fields_set - {"agent"}}
        settings["model"] = policy.model.replace("{run}", run)
        # Apart, because `policy.temperature` is for the search, not for an evaluation.
        temperature = settings.pop("temperature", temperature)
        agent = agent_with_protocol(self.agent, policy.agent)
        return PolicyUnderTest(_with_settings(self.policy, settings), agent, temperature)

    @property
    def answer_judge(self) -> JudgeSettings | None:
        """The model of `evaluation.judge`; settings that it does not set come from `judge:`."""
        judge = self.evaluation.judge
        if judge is None:
            return None
        settings = {name: getattr(judge, name) for name in judge.model_fields_set}
        settings["temperature"] = judge.temperature
        return _with_settings(self.judge or JudgeSettings(), settings)

    def evaluated_models(self, run: str) -> dict[str, ModelSettings]:
        """Returns the models that an evaluation asks, by setting; see `policies_under_test`."""
        models = {
            f"evaluation.policies.{name}" if self.evaluation.policies else "policy": policy.model
            for name, policy in self.policies_under_test(run).items()
        }
        if set(self.evaluation.baselines) - {"majority"}:
            models["evaluation.baseline_model"] = self.reader(run).model
        return models if self.answer_judge is None else {**models, JUDGE: self.answer_judge}

    def question_sets(self) -> Iterator[tuple[str, SetSettings]]:
        """Yields the sets to annotate and to evaluate, with their settings' names."""
        for questions in self.data.mix or (self.data,):
            yield "data.mix" if self.data.mix else "data", questions
        if self.evaluation.set is not None:
            yield "evaluation.set", self.evaluation.set
        for questions in self.evaluation.mix:
            yield "evaluation.mix", questions

    def other_endpoints(self) -> dict[str, ModelSettings]:
        """Returns evaluated models and the rater with another endpoint or price than the policy."""
        models = self.evaluated_models(self.name)
        models["difficulty.policy"] = self.rater(self.name).model
        usual_endpoint = _endpoint_and_price(self.policy)
        return {
            name: model
            for name, model in models.items()
            if _endpoint_and_price(model) != usual_endpoint
        }

    @property
    def decisive_digest(self) -> str:
        """Hash of the identity settings (12 hex digits)."""
        return _hash(identity_settings(self))

    def digest(self, *blocks: str, without: Collection[str] = ()) -> str:
        """Returns the hash of the named blocks, or of the whole recipe (12 hex digits).

        Addresses of the recipe's own models and search server do not count.

        Args:
            blocks: Names of the blocks; defaults to all.
            without: Settings to exclude, such as `training.dpo.micro_batch`.
        """
        settings = settings_by_identity(self)
        content = {name: settings[name] for name in blocks or settings}
        for path in without:
            *blocks_of_it, last = path.split(".")
            reduce(dict.__getitem__, blocks_of_it, content).pop(last)
        return _hash(content)


def agent_with_protocol(usual: AgentSettings, changes: Mapping[str, Any]) -> AgentSettings:
    """Returns agent settings with changes, which may name another protocol.

    Args:
        usual: Settings of the recipe. Only those that both protocols have are inherited.
        changes: Settings of an `agent:` block.

    Raises:
        ValidationError: If the changes are wrong.
    """
    kind = AGENT_BLOCK.class_of({"protocol": usual.protocol, **changes})
    inherited = usual.model_dump(include=shared_settings(kind, type(usual)))
    settings = kind.model_validate({**inherited, **changes})
    assert isinstance(settings, AgentSettings)
    return settings


def _endpoint_and_price(model: ModelSettings) -> tuple[object, ...]:
    return model.engine, model.addresses, model.price_per_million


def _with_settings(model: M, settings: Mapping[str, Any]) -> M:
    """Returns a model with other settings.

    It does not inherit `ENDPOINT` at another endpoint, nor `HOSTED_MODEL` as another model of the
    same one. A server of one's own costs the same for every model.
    """
    named = settings.keys() & {"engine", "base_url", "base_urls", "model"}
    differing = {name for name in named if settings[name] != getattr(model, name)}
    if differing - {"model"}:
        model = _updated(model, {name: getattr(_USUAL, name) for name in ENDPOINT})
    elif differing and model.engine == "openai":
        model = _updated(model, {name: getattr(_USUAL, name) for name in HOSTED_MODEL})
    return _updated(model, settings)


def _updated(block: S, values: Mapping[str, Any]) -> S:
    block_values = {
        name: value for name, value in values.items() if name in type(block).model_fields
    }
    return block.model_copy(update=block_values)


def _hash(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(canonical.encode(), digest_size=6).hexdigest()
