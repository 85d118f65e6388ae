"""The questions of an evaluation, and all settings that its predictions depend on."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from branchwise.base import ConfigError, as_object, object_inside
from branchwise.evaluation import PolicyUnderTest
from branchwise.sources import Data, DataSettings, load_data, repeated_questions
from branchwise.storage import TRAINED, load_manifest, read_parts, table_to_records
from branchwise.types import Question
from branchwise.weights import TRAINING_RECORD

from .inputs import questions_digest
from .plugins import plugin_versions
from .prepared import Prepared
from .recipe import Recipe, identity, retrieval_identity
from .record import read_record


def evaluation_data(recipe: Recipe, limit: int | None = None) -> Data:
    """Reads the evaluation's questions, over the run's corpus.

    A question is dropped if it fits the protocol of none of the policies. If it fits some, the
    others skip it.
    """
    policies = recipe.policies_under_test(recipe.name).values()
    protocols = [policy.protocol for policy in policies]

    def unfit(question: Question) -> str | None:
        reasons = [protocol.unfit(question) for protocol in protocols]
        return None if None in reasons else reasons[0]

    return load_data(data_settings(recipe, limit), recipe.seed, unfit=unfit)


def data_settings(recipe: Recipe, limit: int | None = None) -> DataSettings:
    """Returns the data settings of the evaluation: its own set or mix, or a split of the data.

    A run's `data.skip` does not apply, so that all policies answer the same questions.
    """
    evaluation = recipe.evaluation
    update: dict[str, Any] = {"limit": limit or evaluation.limit}
    if evaluation.mix:
        update["mix"] = evaluation.mix
    elif evaluation.set is None:
        update["split"] = evaluation.split
        update["mix"] = tuple(part.model_copy(update=update) for part in recipe.data.mix)
    else:
        update = evaluation.set.model_dump() | update | {"mix": ()}
    return recipe.data.model_copy(update={**update, "skip": 0})


def set_name(recipe: Recipe) -> str:
    """Returns the name of the evaluated set: source (several if the data is a mix) and split."""
    evaluation = recipe.evaluation
    mix = (evaluation.set,) if evaluation.set is not None else evaluation.mix
    sources = [part.source for part in mix or recipe.data.mix or (recipe.data,)]
    splits = [part.split or "all" for part in mix] or [evaluation.split]
    return "-".join("+".join(dict.fromkeys(names)) for names in (sources, splits))


def evaluation_identity(prepared: Prepared, candidates: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings, and digests of prompts, questions, index and weights, that decide answers.

    Args:
        prepared: What the evaluation works with.
        candidates: Settings that affect the answers of each policy and baseline, by name.
    """
    recipe, limit = prepared.recipe, prepared.context.limit
    baselines = {name: candidates[name] for name in recipe.evaluation.baselines}
    return {
        "seed": recipe.seed,
        "retrieval": retrieval_identity(recipe.retrieval),
        **answer_settings(recipe.usual_policy, recipe),
        "data": data_settings(recipe, limit).model_dump(mode="json", exclude={"skip"}),
        "policies": {name: candidates[name] for name in candidates if name not in baselines},
        "index_digest": prepared.retriever.digest,
        "questions_digest": questions_digest(prepared.data.questions),
        "baselines": baselines,
        "draw": recipe.evaluation.draw,
    }


def answer_settings(policy: PolicyUnderTest, recipe: Recipe) -> dict[str, Any]:
    """Returns the settings of a policy that decide its answers, and the digest of its prompts.

    Without its model, which has a digest.
    """
    passing, model = {"model", "temperature", "price_per_million"}, identity(policy.model)
    return {
        "agent": policy.agent.model_dump(mode="json"),
        "policy": {name: model[name] for name in model if name not in passing},
        "temperature": policy.temperature,
        "prompt_hash": policy.protocol.prompt_hash,
        **plugin_versions(policy.agent, recipe.rewards, recipe.retrieval),
    }


def check_no_overlap(
    run: Path, policies: Iterable[PolicyUnderTest], questions: Sequence[Question]
) -> None:
    """Rejects questions that this run, or a policy's training run, was annotated or trained with.

    Raises:
        ConfigError: If some overlap, by id or by text.
    """
    trained = [*filter(None, (_trained_on(policy.model.trainable) for policy in policies))]
    siblings = sorted(run.parent.glob("*/"))
    trained_on = (folder for folder in siblings if any(_is_run(folder, data) for data in trained))
    for folder in dict.fromkeys((run, *trained_on)):
        if repeated := repeated_questions(questions, _learned_from(folder)):
            raise ConfigError(
                f"{len(repeated)} of {len(questions)} evaluation questions were annotated or "
                f"trained on in {folder}, such as {repeated[0].question!r}: draw data.split and "
                "the evaluation's set from different splits"
            )


def _learned_from(run: Path) -> Iterator[Question]:
    """Yields the questions of a run's trees, and those that `train-grpo` drew rollouts of."""
    if not run.is_dir():
        return
    for table in dict.fromkeys(part.table for part in load_manifest(run).parts):
        if table == "questions" or table.startswith(f"{TRAINED}/"):
            yield from table_to_records(read_parts(run, table), Question)


def _trained_on(model: str) -> Mapping[str, Any]:
    """Returns `data` of a policy's training record: the run of its rows. Empty if unknown."""
    try:
        return as_object(object_inside(Path(model), TRAINING_RECORD)["data"])
    except (OSError, ValueError, KeyError, ConfigError):
        return {}


def _is_run(folder: Path, trained: Mapping[str, Any]) -> bool:
    """Returns whether a folder holds the run of a training record, even under another name."""
    try:
        record = read_record(folder)
    except ConfigError:
        record = None
    if record is None or "run_id" not in trained:
        return folder.name == trained.get("run")
    return record.run_id == str(trained["run_id"])
