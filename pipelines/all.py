"""`make all`: the recipe's stages (`stages:`), one after the other; ends where one ends early."""

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
from runs.stage import DONE, Invocation, Outcome

STAGES: Mapping[str, Callable[[Invocation], Outcome]] = {
    "warm-start": warm_start,
    "select": select,
    "annotate": annotate,
    "train-sft": train_sft,
    "train-dpo": train_dpo,
    "train-grpo": train_grpo,
    "eval": evaluate,
}

_TAKE_LIMIT = frozenset({"select", "annotate", "train-grpo"})
"""Stages that `--limit` is about: those that ask questions to learn from."""


def all_stages(call: Invocation) -> Outcome:
    """Run the stages."""
    totals: dict[str, Any] = {}
    for name in call.recipe.stages:
        outcome = STAGES[name](call if name in _TAKE_LIMIT else replace(call, limit=None))
        totals[name] = outcome.totals
        if outcome.exit_code != DONE:
            return Outcome(totals, outcome.exit_code)
        if call.dry_run:  # later stages read what this one would have written
            call.say(", ".join(f"then {later}" for later in call.recipe.stages[1:]))
            break
    return Outcome(totals)
