"""Who is evaluated: policies and baselines, each with its model, protocol and questions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.protocols import protocol_of
from evaluation.baselines import Material, load_baseline
from evaluation.run import Begin
from retrieval.interface import Retriever
from runs.assemble import Say
from runs.evaluation_set import data_settings
from runs.inputs import model_digest
from runs.recipe import Recipe
from sources.load import Data, load_part
from sources.parts import folded_question
from storage.errors import ConfigError
from storage.records import Question


@dataclass(frozen=True)
class Candidate:
    """A policy or a baseline, and how it is asked.

    Attributes:
        name: Shown in tables.
        recipe: Its `policy`, `agent` and `evaluation.temperature` are those of the candidate.
        questions: Asked if they have an answer, or if the protocol can refuse.
        deciding: What decides its answers, apart from the evaluation's own settings.
        path: Of its calls in the ledger.
        asks_model: False if `begin` returns the answer.
    """

    name: str
    recipe: Recipe
    questions: tuple[Question, ...]
    deciding: Mapping[str, Any] = field(compare=False)
    begin: Begin | None = None
    path: str = "eval"
    asks_model: bool = True


def policies_of(recipe: Recipe, run: Path) -> dict[str, Recipe]:
    """Returns the recipe of every policy by name; `{run}` stands for the run's name.

    Raises:
        ConfigError: Model folders are missing.
    """
    named = recipe.evaluation.policies or {"policy": recipe.policy.model}
    found = {name: _with_model(recipe, model, run) for name, model in named.items()}
    settings = {f"evaluation.policies.{name}": one for name, one in found.items()}
    if recipe.evaluation.baselines:
        settings["evaluation.baseline_model"] = _reader(recipe, run)
    missing = [
        f"{setting}: {one.policy.model} does not exist; train it first, or leave it out"
        for setting, one in settings.items()
        if one.policy.engine == "openvino"
        and one.policy.model != "packaged"
        and not Path(one.policy.model).exists()
    ]
    if missing:
        raise ConfigError("\n".join(missing))
    return found


def policy_candidates(policies: Mapping[str, Recipe], data: Data) -> Iterator[Candidate]:
    """Yields the policies as they are asked."""
    for name, recipe in policies.items():
        yield Candidate(
            name,
            recipe,
            data.questions,
            {"model": recipe.policy.model, "digest": model_digest(recipe.policy, recipe)},
        )


def baseline_candidates(
    recipe: Recipe, run: Path, data: Data, retriever: Retriever, say: Say
) -> Iterator[Candidate]:
    """Yields the recipe's baselines as they are asked.

    Raises:
        ConfigError: The questions of the part `train`, or the model, cannot be read.
    """
    reader = _reader(recipe, run)
    material = Material(
        {passage.id: passage for passage in data.passages},
        retriever,
        recipe.retrieval.top_k,
        lambda: _others(recipe, data),
    )
    for name in recipe.evaluation.baselines:
        baseline = load_baseline(name, material)
        questions = tuple(filter(baseline.can_be_asked, data.questions))
        if left_out := len(data.questions) - len(questions):
            say(f"{name}: {left_out} questions left out, {baseline.left_out}")
        deciding = dict(baseline.deciding)
        agent = reader.agent.model_copy(update={"protocol": baseline.protocol})
        if baseline.asks_model:
            digest = model_digest(reader.policy, reader)
            deciding |= {"model": reader.policy.model, "digest": digest}
            deciding["prompt_hash"] = protocol_of(agent).prompt_hash
        yield Candidate(
            name,
            reader.model_copy(update={"agent": agent}),
            questions,
            deciding,
            baseline.begin,
            f"eval/{name}",
            baseline.asks_model,
        )


def _reader(recipe: Recipe, run: Path) -> Recipe:
    """The recipe of the model that baselines ask."""
    untrained = "packaged" if recipe.policy.engine == "openvino" else recipe.policy.model
    return _with_model(recipe, recipe.evaluation.baseline_model or untrained, run)


def _with_model(recipe: Recipe, model: str, run: Path) -> Recipe:
    update = {"model": model.replace("{run}", run.name)}
    return recipe.model_copy(update={"policy": recipe.policy.model_copy(update=update)})


def _others(recipe: Recipe, data: Data) -> Iterator[Question]:
    """Questions of the part `train` that are not asked."""
    asked = {folded_question(question.question) for question in data.questions}
    known = load_part(data_settings(recipe), "train", recipe.seed)
    return (q for q in known if folded_question(q.question) not in asked)
