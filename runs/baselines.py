"""Baselines beside the policies of an evaluation; what each one is, `evaluation.baselines` says."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent.environment import Environment
from agent.reading import Reading
from engines.sampling import Engine
from engines.settings import ModelSettings
from evaluation.baselines import (
    answer_alike,
    gold_passages,
    majority_answers,
    one_search,
    supporting,
)
from evaluation.run import Begin, Evaluated, from_question
from evaluation.settings import BaselineName
from runs.assemble import environment_for
from runs.evaluation import PolicyEvaluation
from runs.evaluation_set import data_settings
from runs.inputs import model_digest
from runs.recipe import Recipe
from sources.load import Data, load_part
from sources.parts import folded_question
from storage.records import Question

MAJORITY: BaselineName = "majority"
ORACLE: BaselineName = "oracle"


@dataclass(frozen=True)
class Baselines:
    """Those that a recipe names.

    Attributes:
        model: of the reading ones.
        answers: of the majority, by source.
        deciding: by name, what decides its answers besides the evaluation's own settings.
    """

    names: tuple[BaselineName, ...]
    model: ModelSettings
    answers: Mapping[str, str]
    deciding: Mapping[str, Any]

    def taken(self, evaluation: PolicyEvaluation) -> Iterator[tuple[str, Evaluated]]:
        """The answers of each; one that is owed some is the last."""
        read: dict[str, Evaluated] = {}
        if readers := [name for name in self.names if name != MAJORITY]:
            with evaluation.gate.listening():
                read = asyncio.run(_read(evaluation, self.model, readers))
        for name in self.names:
            if name == MAJORITY:
                yield name, self._majority(evaluation)
            elif name in read:
                evaluation.tell_skipped(name, read[name])
                yield name, read[name]

    def _majority(self, evaluation: PolicyEvaluation) -> Evaluated:
        recipe, asked = evaluation.run.recipe, evaluation.data.questions
        lost = sum(q.answerable and q.source not in self.answers for q in asked)
        if lost:
            evaluation.call.say(
                f"{MAJORITY}: {lost} questions left out, whose source has no others in its part "
                "`train`"
            )
        return answer_alike(asked, self.answers, policy=MAJORITY, seed=recipe.seed)


def baselines_of(recipe: Recipe, run: Path, data: Data) -> Baselines:
    """The baselines of a recipe, ready to be asked.

    Raises:
        ConfigError: the questions of the part `train` cannot be read, or the reader's model.
    """
    names = recipe.evaluation.baselines
    model = recipe.policy.model_copy(update={"model": reader_of(recipe, run)})
    answers = _majority_of(recipe, data) if MAJORITY in names else {}
    reader: dict[str, Any] = {}
    if set(names) - {MAJORITY}:
        digest = model_digest(model, recipe)
        reader = {"model": model.model, "digest": digest, "prompt_hash": Reading().prompt_hash}
    deciding: dict[str, Any] = {name: reader for name in names if name != MAJORITY}
    if MAJORITY in names:
        deciding[MAJORITY] = {"answers": answers}
    return Baselines(names, model, answers, deciding)


def reader_of(recipe: Recipe, run: Path) -> str:
    """The model that reads; `{run}` stands for the run's name."""
    untrained = "packaged" if recipe.policy.engine == "openvino" else recipe.policy.model
    return (recipe.evaluation.baseline_model or untrained).replace("{run}", run.name)


def _majority_of(recipe: Recipe, data: Data) -> dict[str, str]:
    """The most frequent answers to questions that are not asked."""
    asked = {folded_question(question.question) for question in data.questions}
    known = load_part(data_settings(recipe), "train", recipe.seed)
    return majority_answers(q for q in known if folded_question(q.question) not in asked)


async def _read(
    evaluation: PolicyEvaluation, model: ModelSettings, names: list[BaselineName]
) -> dict[str, Evaluated]:
    """The readers' answers, their model started once; one that is owed some is the last."""
    read: dict[str, Evaluated] = {}
    async with evaluation.opened(model) as engine:
        environment = _reading(evaluation, engine)
        for name in names:
            begin, questions = _given(evaluation, name)
            read[name] = await evaluation.asked(
                name, model, environment, questions, begin=begin, path=f"eval/{name}"
            )
            if read[name].owed:
                break
    return read


def _reading(evaluation: PolicyEvaluation, engine: Engine) -> Environment:
    environment = environment_for(evaluation.run.recipe, engine, evaluation.retriever)
    # One turn: no budget of steps can force it.
    settings = environment.settings.model_copy(update={"max_steps": 100})
    return replace(environment, protocol=Reading(), settings=settings)


def _given(evaluation: PolicyEvaluation, name: BaselineName) -> tuple[Begin, list[Question]]:
    """What a reader begins with, and the questions that it can be asked."""
    questions = list(evaluation.data.questions)
    if name == "closed-book":
        return from_question, questions
    if name != ORACLE:
        return one_search(evaluation.retriever, evaluation.run.recipe.retrieval.top_k), questions
    corpus = {passage.id: passage for passage in evaluation.data.passages}
    known = [question for question in questions if supporting(question, corpus)]
    if left_out := len(questions) - len(known):
        evaluation.call.say(
            f"{ORACLE}: {left_out} questions left out, whose gold passages are unknown"
        )
    return gold_passages(corpus), known
