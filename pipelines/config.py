"""A recipe: one YAML file, checked whole before anything loads.

Every room declares its own settings; this module composes them, reads the file, applies `--set`,
and names every mistake at once with its line and the nearest valid key.
"""

import difflib
import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, Field, ValidationError

from agent.settings import AgentSettings
from annotation.settings import PairSettings
from engines.settings import JudgeSettings, ModelSettings
from evaluation.settings import EvaluationSettings
from mcts.settings import SearchSettings
from retrieval.encoder import require_dense_extra
from retrieval.settings import RetrievalSettings
from rewards.settings import Estimator, SpreSettings
from rewards.spre import default_estimator
from sources.settings import DataSettings, Part, SetSettings
from storage.errors import ConfigError
from storage.settings import Settings
from training.settings import TrainingSettings

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$"
"""What can be the name of a folder."""


MAY_CHANGE = frozenset({"limits", "training", "evaluation"})
"""Blocks that a resumed annotation may set anew; everything else decides what rows mean."""

LATER: Mapping[str, Any] = {
    "mcts.kind": "tree",
    "mcts.max_output_tokens": None,
    "spre.temperature": None,
    "pairs.actions": None,
    "pairs.same_action": False,
    "pairs.max_length_ratio": None,
    "pairs.max_similarity": None,
    "pairs.per_state": "all",
    "pairs.max_per_question": None,
    "pairs.order": "earned",
}
"""Settings that came when runs had been made, each at the value that does what was done before.

At that value a setting is no part of a digest, so that a run begun without it keeps its ids, and
its rows the digests that they were written with.
"""


class LimitSettings(Settings):
    """What a run may use.

    Attributes:
        max_concurrency: most calls in flight at one endpoint, which may get fewer (see the guide).
        max_questions_in_flight: questions being worked on; more than calls, or slots go idle.
            Null: 256 at an endpoint, and 24 in the embedded engine, whose prompt cache of some
            46,000 tokens holds few more.
        timeout_s: of one attempt at a call.
        deadline_s: of one call with all its attempts and the waits between them; no less than
            `timeout_s` counts.
        max_usd, max_tokens: of the run, all attempts and stages together; it drains and exits 3
            when one is reached.
        max_hours: of one attempt; likewise.
        max_failed_share: above this share of failed questions a stage exits 4.
    """

    max_concurrency: int = Field(default=64, ge=1)
    max_questions_in_flight: int | None = Field(default=None, ge=1)
    timeout_s: float = Field(default=120.0, gt=0)
    deadline_s: float = Field(default=900.0, gt=0)
    max_usd: float | None = Field(default=None, gt=0)
    max_tokens: int | None = Field(default=None, gt=0)
    max_hours: float | None = Field(default=None, gt=0)
    max_failed_share: float = Field(default=0.05, ge=0, le=1)


class EvaluationConfig(EvaluationSettings):
    """Evaluation, and its questions.

    Attributes:
        set: null takes the run's own source, or each of its mix.
        part: hash part that is drawn from where `set` is null. Settings are chosen on `dev`;
            `test` is for what one then reports.
    """

    set: SetSettings | None = None
    part: Part = "test"


class Recipe(Settings):
    """Everything a run is made of; `config.yaml` of a run folder holds the resolved one."""

    name: str = Field(pattern=NAME_PATTERN)
    seed: int = 0
    data: DataSettings = DataSettings()
    retrieval: RetrievalSettings = RetrievalSettings()
    agent: AgentSettings = AgentSettings()
    policy: ModelSettings = ModelSettings()
    judge: JudgeSettings | None = None
    mcts: SearchSettings = SearchSettings()
    spre: SpreSettings = SpreSettings()
    pairs: PairSettings = PairSettings()
    limits: LimitSettings = LimitSettings()
    training: TrainingSettings = TrainingSettings()
    evaluation: EvaluationConfig = EvaluationConfig()

    @property
    def asked_judge(self) -> JudgeSettings | None:
        """The judge that the search asks; null where it asks none, whatever `judge:` says."""
        return self.judge if self.mcts.evaluator == "judge" else None

    @property
    def questions_in_flight(self) -> int:
        """How many questions are worked on at once."""
        fitting = 24 if self.policy.engine == "openvino" else 256
        return self.limits.max_questions_in_flight or fitting

    @property
    def estimator(self) -> Estimator:
        """The label estimator, with its default for the search's evaluator."""
        return self.spre.estimator or default_estimator(self.mcts.evaluator)

    @property
    def decisive_digest(self) -> str:
        """Hash of all that decides what rows mean (12 hex digits)."""
        return self.digest(*sorted(set(type(self).model_fields) - MAY_CHANGE))

    def digest(self, *blocks: str) -> str:
        """Hash of the named blocks, or of the whole recipe (12 hex digits); see `LATER`."""
        content = self.model_dump(mode="json", include=set(blocks) if blocks else None)
        for path, before in LATER.items():
            block, name = path.split(".")
            if block in content and content[block][name] == before:
                del content[block][name]
        canonical = json.dumps(content, sort_keys=True, ensure_ascii=False)
        return hashlib.blake2b(canonical.encode(), digest_size=6).hexdigest()


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe and apply `--set a.b=value` overrides.

    Raises:
        ConfigError: naming every mistake, its file and line, and what to do.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the recipe: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8") from error
    try:
        root = yaml.compose(text)
        values: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a recipe is a mapping of settings, such as `name: mine`")
    problems = [f"{path}:{line}: `{key}` stands there twice" for key, line in _repeated(root)]
    problems += [p for p in (_override(values, item) for item in overrides) if p]
    recipe, faults = _validated(values)
    lines = dict(_lines(root))
    set_here = {tuple(item.partition("=")[0].split(".")) for item in overrides}
    problems += [_explain(path, lines, set_here, fault) for fault in faults]
    unsound = {str(fault["loc"][0]) for fault in faults}
    problems += [f"{path}: {problem}" for problem in contradictions(recipe, unsound)]
    if problems:
        raise ConfigError("\n".join(problems))
    return recipe


def _validated(values: dict[str, Any]) -> tuple[Recipe, list[dict[str, Any]]]:
    """The recipe and what is wrong with it; blocks at fault have their defaults."""
    try:
        return Recipe.model_validate(values), []
    except ValidationError as error:
        faults: list[dict[str, Any]] = [dict(fault) for fault in error.errors()]
    unsound = {fault["loc"][0] for fault in faults}
    sound = {
        name: values[name] for name in Recipe.model_fields.keys() & values if name not in unsound
    }
    return Recipe.model_validate({"name": "unnamed", **sound}), faults


def _override(values: dict[str, Any], item: str) -> str | None:
    """Apply one `a.b=value` in place; returns what is wrong with it, if anything."""
    key, equals, raw = item.partition("=")
    if not equals or not key:
        return f"--set {item}: write it as --set section.key=value"
    try:
        value = yaml.safe_load(raw)
    except yaml.YAMLError:
        return f"--set {item}: the value is not valid YAML; quote it"
    *sections, last = key.split(".")
    for section in sections:
        inner = values.get(section)
        if not isinstance(inner, dict):
            inner = {}
        values[section] = inner = dict(inner)
        values = inner
    values[last] = value
    return None


def _lines(node: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Every key path of a YAML document with its line, from 1."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*at, str(key.value))
            yield here, key.start_mark.line + 1
            yield from _lines(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            here = (*at, str(index))
            yield here, value.start_mark.line + 1
            yield from _lines(value, here)


def _repeated(root: Any) -> list[tuple[str, int]]:
    """Keys that a mapping names again, of which YAML would silently take the last."""
    seen: set[tuple[str, ...]] = set()
    again = []
    for key, line in _lines(root):
        if key in seen:
            again.append((".".join(key), line))
        seen.add(key)
    return again


def _explain(
    path: Path,
    lines: dict[tuple[str, ...], int],
    set_here: set[tuple[str, ...]],
    error: dict[str, Any],
) -> str:
    location = tuple(str(part) for part in error["loc"])
    known = next((location[:n] for n in range(len(location), 0, -1) if location[:n] in lines), ())
    place = f"{path}:{lines[known]}" if known else str(path)
    overriding = [k for k in set_here if location[: len(k)] == k or k[: len(location)] == location]
    if overriding:
        place = f"--set {'.'.join(min(overriding))}"
    key = ".".join(location)
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(location[-1], _valid_keys(location[:-1]), n=1, cutoff=0.5)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        return f"{place}: `{key}` is not a setting{hint}"
    if error["type"] == "missing":
        return f"{path}: `{key}` is missing"
    return f"{place}: `{key}`: {error['msg']} (given: {error['input']!r})"


def _valid_keys(section: Sequence[str]) -> list[str]:
    """Names of the settings in a section of the recipe."""
    model: type[BaseModel] = Recipe
    for name in section:
        if name.isdigit():
            continue
        field = model.model_fields.get(name)
        found = _models_in(field.annotation) if field else []
        if not found:
            return []
        model = found[0]
    return list(model.model_fields)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    arguments = getattr(annotation, "__args__", ())
    return [model for argument in arguments for model in _models_in(argument)]


def contradictions(recipe: Recipe, unsound: Collection[str] = ()) -> list[str]:
    """Combinations that cannot work, each with its remedy.

    Args:
        recipe: the recipe.
        unsound: blocks that say nothing; whatever depends on one of them is not judged.
    """
    checks = [check for blocks, check in CHECKS if not set(blocks) & set(unsound)]
    return [problem for check in checks for problem in check(recipe)]


def _evaluator(recipe: Recipe) -> Iterator[str]:
    if recipe.mcts.evaluator == "judge" and recipe.judge is None:
        yield "mcts.evaluator is `judge` but there is no `judge:`; name one, or use rollout"


def _rollouts(recipe: Recipe) -> Iterator[str]:
    if recipe.spre.temperature == 0 and recipe.spre.rollouts > 1:
        yield (
            f"spre.temperature is 0, so all {recipe.spre.rollouts} rollouts of a node are one; "
            "set spre.rollouts: 1"
        )


def _estimator(recipe: Recipe) -> Iterator[str]:
    evaluator, estimator = recipe.mcts.evaluator, recipe.estimator
    if recipe.mcts.kind == "chains":
        return
    if estimator in {"judge", "rollout"} and estimator != evaluator:
        facts = {"judge": "judge scores", "rollout": "rollouts"}[estimator]
        yield (
            f"spre.estimator is `{estimator}` but mcts.evaluator is `{evaluator}`, so no node has "
            f"{facts}; use tree or monte_carlo, or mcts.evaluator: {estimator}"
        )


def _chains(recipe: Recipe) -> Iterator[str]:
    if recipe.mcts.kind != "chains":
        return
    if recipe.mcts.evaluator == "judge":
        yield (
            "mcts.kind is `chains`, which evaluates no step on the way, but mcts.evaluator is "
            "`judge`; leave the evaluator out, or let mcts.kind be tree"
        )
    if recipe.estimator in {"judge", "rollout"}:
        yield (
            f"spre.estimator is `{recipe.estimator}` but mcts.kind is `chains`, so that only "
            "answers are scored; use tree or monte_carlo, or let mcts.kind be tree"
        )


def _pairs(recipe: Recipe) -> Iterator[str]:
    search, chains = recipe.mcts, recipe.mcts.kind == "chains"
    alone = "no step has a sibling, so there is no pair; allow 2 or more"
    if search.max_children < 2 and not chains:
        yield f"mcts.max_children is 1: {alone}"
    if search.iterations < 2 and chains:
        yield f"mcts.iterations is 1: {alone}"
    most = search.iterations
    if search.evaluator == "rollout" and not chains:
        most *= recipe.spre.rollouts
    if recipe.pairs.min_outcomes > most:
        yield (
            f"pairs.min_outcomes is {recipe.pairs.min_outcomes}, but {recipe.mcts.iterations} "
            f"iterations give a node at most {most} outcomes; lower it, or search longer"
        )


def _micro_batches(recipe: Recipe) -> Iterator[str]:
    training = recipe.training
    for name, one in (
        ("warm_start", training.warm_start),
        ("sft", training.sft),
        ("dpo", training.dpo),
    ):
        if one.batch_size % one.micro_batch:
            yield (
                f"training.{name}: batch_size {one.batch_size} is not a multiple of micro_batch "
                f"{one.micro_batch}"
            )


def _retrieval(recipe: Recipe) -> Iterator[str]:
    retrieval = recipe.retrieval
    if retrieval.kind in ("dense", "fusion"):
        yield from _said(require_dense_extra)
    if retrieval.kind == "http" and not retrieval.url:
        yield "retrieval.kind is `http` but retrieval.url is not set"


def _said(check: Callable[[], None]) -> list[str]:
    """What a check complains of, if anything."""
    try:
        check()
    except ConfigError as error:
        return [str(error)]
    return []


def _policy_endpoint(recipe: Recipe) -> Iterator[str]:
    return _endpoint("policy", recipe.policy)


def _judge_endpoint(recipe: Recipe) -> Iterator[str]:
    return _endpoint("judge", recipe.judge)


def _endpoint(role: str, model: ModelSettings | None) -> Iterator[str]:
    if model and model.engine == "openai" and not model.base_url:
        yield f"{role}.engine is `openai` but {role}.base_url is not set"


def _prices(recipe: Recipe) -> Iterator[str]:
    remote = [m for m in (recipe.policy, recipe.asked_judge) if m and m.engine == "openai"]
    if recipe.limits.max_usd and any(model.price_per_million is None for model in remote):
        yield "limits.max_usd needs price_per_million on the models that cost money"


def _sources(recipe: Recipe) -> Iterator[str]:
    data = recipe.data
    for one in data.mix or (data,):
        if one.source != "atlas" and not one.questions:
            yield f"data.source is `{one.source}` but its `questions` file is not set"
        if one.source == "atlas" and one.questions:
            yield "data.source is `atlas`, which makes its own questions: leave `questions` out"
    if data.mix and data.questions:
        yield "data.mix names the question sets: leave data.questions out"
    if data.corpus is None and any(one.source == "flashrag" for one in data.mix or (data,)):
        yield "data.source is `flashrag`, which brings no passages: set data.corpus"


def _evaluation(recipe: Recipe) -> Iterator[str]:
    evaluation = recipe.evaluation
    for name in evaluation.baselines:
        if name in evaluation.policies:
            yield (
                f"evaluation.policies.{name} has the name of a baseline that stands beside it; "
                "give the policy another one"
            )


CHECKS: tuple[tuple[tuple[str, ...], Callable[[Recipe], Iterator[str]]], ...] = (
    (("mcts", "judge"), _evaluator),
    (("spre",), _rollouts),
    (("mcts", "spre"), _estimator),
    (("mcts", "spre"), _chains),
    (("mcts", "spre", "pairs"), _pairs),
    (("training",), _micro_batches),
    (("retrieval",), _retrieval),
    (("policy",), _policy_endpoint),
    (("judge",), _judge_endpoint),
    (("limits", "policy", "judge", "mcts"), _prices),
    (("data",), _sources),
    (("evaluation",), _evaluation),
)
"""Every contradiction, with the blocks of the recipe that it reads."""
