"""`make all`: runs the recipe's stages (`stages:`) in order; stops if one ends early."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pipelines.annotate import annotate
from pipelines.evaluate import evaluate
from pipelines.select import select
from pipelines.train_dpo import train_dpo
from pipelines.train_grpo import train_grpo
from pipelines.train_sft import train_sft
from pipelines.warm_start import warm_start
from runs.stage import DONE, StageContext, StageResult

STAGES: Mapping[str, Callable[[StageContext], StageResult]] = {
    "warm-start": warm_start,
    "select": select,
    "annotate": annotate,
    "train-sft": train_sft,
    "train-dpo": train_dpo,
    "train-grpo": train_grpo,
    "eval": evaluate,
}

_TAKE_LIMIT = frozenset({"select", "annotate", "train-grpo"})
"""Stages that `--limit` applies to."""


def all_stages(context: StageContext) -> StageResult:
    """Runs the stages."""
    totals: dict[str, Any] = {}
    for name in context.recipe.stages:
        outcome = STAGES[name](context if name in _TAKE_LIMIT else replace(context, limit=None))
        totals[name] = outcome.totals
        if outcome.exit_code != DONE:
            return StageResult(totals, outcome.exit_code)
        if context.dry_run:  # later stages need the output of this one
            context.log(", ".join(f"then {later}" for later in context.recipe.stages[1:]))
            break
    return StageResult(totals)
