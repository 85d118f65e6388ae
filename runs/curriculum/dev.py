"""Dev results of a curriculum, which decide when a stage stops and which policy is best.

Source: EVO-RAG sections 3.4 ("Training stops if HotpotQA dev EM stalls for two cycles") and 3.5
(Refinement reloads the best checkpoint of Discovery).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from base.errors import ConfigError
from runs.studies.study_runner import StudyRunner

StageName = Literal["discovery", "refinement"]
STAGES: tuple[StageName, ...] = get_args(StageName)
START = "start"
"""Name of the policy at the start of the curriculum."""
METRICS_FROM_EVAL = (
    "em",
    "f1",
    "searches",
    "backtracks",
    "refused",
    "refusal_precision",
    "refusal_recall",
)
"""Figures copied from an evaluation's totals under their own names."""


@dataclass(frozen=True, slots=True)
class DevResult:
    """A policy's result on the dev questions.

    Attributes:
        name: "start", or the cycle that trained it: "discovery-1".
        model: Model folder, or "packaged".
        em, f1: Means over the answerable questions, in [0, 1].
        questions: Number of questions; failed ones are included and count as wrong.
        searches, backtracks: Means per question; None if all failed.
        refused: Share of the questions, in [0, 1]; None if all failed.
        refusal_precision, refusal_recall: Shares in [0, 1]; None if every question is answerable
            (precision also if nothing was refused).
        begun_from: Name of its cycle's start policy; None for the curriculum's start.
        pairs: Number of training pairs; None for the curriculum's start.
    """

    name: str
    model: str
    em: float
    f1: float
    questions: int = 0
    searches: float | None = None
    backtracks: float | None = None
    refused: float | None = None
    refusal_precision: float | None = None
    refusal_recall: float | None = None
    begun_from: str | None = None
    pairs: int | None = None


def best(results: Sequence[DevResult]) -> DevResult:
    """Returns the result with the highest EM; F1 breaks ties, then the earlier result wins.

    Args:
        results: Results of a stage, its start first. If no cycle improved on it, the start wins.
    """
    return max(results, key=lambda result: (result.em, result.f1))


def stalled(results: Sequence[DevResult], patience: int) -> bool:
    """Returns whether the last `patience` cycles did not raise the best EM.

    Args:
        results: Results of a stage so far, in order, its start first.
        patience: Number of cycles, 1 or more.
    """
    scores = [result.em for result in results]
    return len(scores) - 1 - scores.index(max(scores)) >= patience


def evaluate_on_dev(
    runner: StudyRunner,
    name: str,
    model: str,
    *,
    settings: Mapping[str, object] | None = None,
) -> DevResult:
    """Evaluates a policy on the dev questions, or reads the stored result.

    Args:
        runner: Runner whose run folder takes the predictions.
        name: Name of the policy.
        model: Model folder, or "packaged".
        settings: Settings of its cycle.

    Returns:
        The result; in a dry run, one with EM and F1 of 0.

    Raises:
        ConfigError: If no dev question can be answered, so that EM is undefined.
        StageStopped: If the evaluation ended early.
    """
    asked = {
        **(settings or {}),
        "evaluation.set": None,
        "evaluation.mix": [],
        "evaluation.split": "dev",
        "evaluation.limit": runner.recipe.curriculum.dev_questions,
        "evaluation.policies": {name: model},
        "evaluation.baselines": [],
    }
    totals = runner.run_stage("eval", settings=asked)
    if not totals:
        return DevResult(name, model, 0.0, 0.0)
    (row,) = totals["policies"]
    if row["em"] is None:
        raise ConfigError(
            f"none of the {row['n']} questions of split dev is answerable, so EM cannot compare "
            "policies: raise curriculum.dev_questions"
        )
    return DevResult(
        name, model, questions=row["n"], **{field: row[field] for field in METRICS_FROM_EVAL}
    )
