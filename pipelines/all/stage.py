"""`make all`: runs the recipe's stages (`stages:`) in order; stops if one ends early."""

from dataclasses import replace
from typing import Any

from branchwise.runs import DONE, ByType, StageContext, StageResult

from ..stages import STAGES

_TAKE_LIMIT = frozenset({"select", "annotate", "train-grpo"})
"""Stages that `--limit` applies to."""


def all_stages(context: StageContext, by_type: ByType = False) -> StageResult:
    """Runs the stages."""
    totals: dict[str, Any] = {}
    for name in context.recipe.stages:
        limited = context if name in _TAKE_LIMIT else replace(context, limit=None)
        outcome = STAGES[name].run(limited, {"by_type": by_type})
        totals[name] = outcome.totals
        if outcome.exit_code != DONE:
            return StageResult(totals, outcome.exit_code)
        if context.dry_run:  # later stages need the output of this one
            if later := context.recipe.stages[1:]:
                context.log(f"then {', then '.join(later)}")
            break
    return StageResult(totals)
