"""Digests of the inputs of a run's rows: if a file changes, its name stays but its digest does not.

They are noted in `provenance.json` at the start of a run; `runs.folder` rejects other inputs.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from branchwise.agent import AgentProtocol, protocol_of
from branchwise.annotation import judge_prompt_hash
from branchwise.base import ConfigError, digest_of_many
from branchwise.retrieval import corpus_hash
from branchwise.rewards import reward_model_digest
from branchwise.storage import question_ids
from branchwise.types import Passage, Question

from .factories import open_data
from .folder import Run, check_same_inputs
from .plugins import plugin_versions
from .prepared import Prepared
from .record import read_record


def annotation_inputs(prepared: Prepared, *, searches: bool = True) -> dict[str, str]:
    """Returns digests of everything besides the recipe that decides an annotation's rows.

    Args:
        prepared: What the annotation works with.
        searches: Whether there are questions left; if not, no search server is needed.

    Raises:
        RetrievalError: If the search server does not answer.
    """
    recipe = prepared.recipe
    digests = {
        "questions": questions_digest(prepared.data.questions),
        **prepared.digests,
        **_replayed(prepared.protocol, prepared.data.passages),
    }
    if searches:
        digests["index"] = prepared.retriever.digest
    if "judge" in prepared.models:
        digests["judge_prompts"] = judge_prompt_hash()
    if recipe.active_reward_model is not None:
        digests["reward_model"] = reward_model_digest(Path(recipe.active_reward_model))
    plugins = plugin_versions(recipe.agent, recipe.rewards, recipe.retrieval)
    return digests | prepared.scheme.inputs() | plugins


def noted_model_digests(run: Run) -> dict[str, str]:
    """Returns the digests of the models that a run was annotated with, by role.

    Raises:
        ConfigError: If it has not been annotated.
    """
    try:
        return {role: run.record.inputs[role] for role in run.recipe.annotating_models}
    except KeyError as role:
        raise ConfigError(
            f"{run.folder}: the run has no calls of {role}, so there is nothing to replay. Run "
            "`branchwise annotate` without --replay"
        ) from None


def replay_passages(run: Run) -> dict[str, Passage]:
    """Returns the run's corpus by id, to rebuild the policy's prompts from its trees.

    Raises:
        ConfigError: If the corpus or the prompts have changed since the trees were grown.
    """
    passages = open_data(run.recipe).passages
    protocol = protocol_of(run.recipe.agent)
    check_same_inputs(run.folder, run.record, _replayed(protocol, passages))
    return {passage.id: passage for passage in passages}


def _replayed(protocol: AgentProtocol, passages: Iterable[Passage]) -> dict[str, str]:
    return {"corpus": corpus_hash(passages), "policy_prompts": protocol.prompt_hash}


def questions_digest(questions: Sequence[Question]) -> str:
    """Returns the hash of all questions with every field, in their order."""
    dumped = (json.dumps(q.model_dump(), sort_keys=True, default=str) for q in questions)
    return digest_of_many(dumped)


def adds_questions(run: Path, questions: Sequence[Question]) -> bool:
    """Returns whether these are the run's questions, unchanged, and others."""
    record = read_record(run)
    if record is None:
        return False
    stored = question_ids(run, "questions")
    same = [question for question in questions if question.id in stored]
    is_larger = len(stored) == len(same) < len(questions)
    return is_larger and questions_digest(same) == record.inputs.get("questions")


def check_not_fewer(run: Path, questions: Sequence[Question], limit: int | None) -> None:
    """Checks that the limit does not leave out questions of the run, which would not shrink it.

    Raises:
        ConfigError: If the run has these questions and others.
    """
    stored = question_ids(run, "questions") if run.is_dir() else set()
    if len(questions) == limit and {question.id for question in questions} < stored:
        raise ConfigError(
            f"{run}: the run has {len(stored)} questions, and a limit of {limit} (--limit or "
            "data.limit) would leave some of them out. A run can only get more questions: use "
            f"--limit {len(stored)} to resume it, a higher limit to extend it, or another --run "
            f"folder for {limit} questions"
        )
