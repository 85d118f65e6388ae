"""What a stage will cost, before it calls a model, and what a run has cost.

The estimate comes from the stage's earlier calls in a run's ledger. Without any it consists of
bounds from the recipe, which are wide (`runs.cost_bounds`).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from rich.filesize import decimal

from branchwise.base import ConfigError, terminal_safe
from branchwise.engines import ModelSettings, Price, Usage, cost_usd
from branchwise.storage import REPORTED, Ledger, Totals, question_ids, read_call_history

from .cost_bounds import CostRange, Range, scale
from .folder import existing_run
from .recipe import LimitSettings, Recipe, identity_settings
from .record import LEDGER, flat, read_record, recipe_of
from .stage import StageContext, StageResult

COUNTED_BY = {
    "tokenizer": "counted with the model's tokenizer",
    "bytes": "estimated from above, from bytes",
}
"""Description of token counts that the endpoint did not report, by `Call.usage_basis`."""


def spending(spent: Totals) -> dict[str, Any]:
    """Returns the totals of a run's ledger, in the form of a stage's totals."""
    return {
        "calls": spent.calls,
        "calls_estimated": spent.estimated,
        "calls_unpriced": spent.unpriced,
        "input_tokens": spent.input_tokens,
        "cached_tokens": spent.cached_tokens,
        "output_tokens": spent.output_tokens,
        "cost_usd": spent.cost_usd,
    }


def estimates(ledger: Ledger) -> dict[str, int]:
    """Counts calls without usable reported tokens, by the way that their tokens were counted."""
    if not ledger.totals().estimated:
        return {}
    bases = ledger.count_calls("usage_basis").items()
    return {COUNTED_BY.get(basis, basis): n for basis, n in bases if basis != REPORTED}


def describe_costs(ledger: Ledger, limits: LimitSettings) -> Iterator[str]:
    """Yields sentences about the run's costs and the caveats of those figures."""
    spent = ledger.totals()
    cost = f", {spent.cost_usd:,.4f} USD" if spent.cost_usd else ""
    yield f"{spent.calls} calls in the ledger{cost}"
    if estimated := estimates(ledger):
        counting = ", ".join(f"{n:,} {words}" for words, n in sorted(estimated.items()))
        yield (
            f"the endpoint reported no usable token counts for {spent.estimated:,} of "
            f"{spent.calls:,} calls, so limits and costs use ours: {counting}"
        )
    if limits.max_usd is not None and spent.unpriced:
        yield f"limits.max_usd does not count {spent.unpriced:,} calls of models without a price"


def log_costs(context: StageContext, ledger: Ledger) -> dict[str, Any]:
    """Logs the costs of the run over all its stages; returns them as totals."""
    for line in describe_costs(ledger, context.recipe.limits):
        context.log(line)
    return spending(ledger.totals())


STORED = ("ledger.sqlite*", "trees/*", "pairs/*", "eval/**/*", "select/*")
"""Files of a run that grow with its calls."""

TREE_CALLS = ("tree/*", "rollout/*", "judge/*", "verifier/*")
DECIDING = ("retrieval", "agent", "policy", "judge", "mcts", "verifier")
"""Blocks of a recipe that decide how many calls and tokens its work needs."""
EVALUATION_CALLS = ("eval+*", "eval/*")
RATING_CALLS = ("select/*",)
TRAINING_CALLS = ("grpo/*", "grpo-dev+*")


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """What a stage will cost.

    Attributes:
        unit: "question", "answer" or "rollout".
        seconds: Duration; None if no rate was measured.
        observed: Lowest, mean and highest number of calls per unit in the history.
    """

    unit: str
    units: Range
    cost: CostRange
    basis: str
    observed: tuple[float, float, float] | None = None
    calls_per_s: float | None = None

    @property
    def seconds(self) -> Range | None:
        return scale(self.cost.calls, 1 / self.calls_per_s) if self.calls_per_s else None

    def report(self, context: StageContext, **planned: int) -> StageResult:
        """Logs the estimate; returns the result of a dry run."""
        for line in self._lines():
            context.log(line)
        cost, seconds = self.cost, self.seconds
        expected = {
            f"expected_{self.unit}s": _whole(self.units),
            "expected_calls": _whole(cost.calls),
            "expected_input_tokens": _whole(cost.input_tokens),
            "expected_output_tokens": _whole(cost.output_tokens),
            "expected_cost_usd": None if cost.cost_usd is None else list(cost.cost_usd),
            "expected_seconds": None if seconds is None else _whole(seconds),
            "expected_disk_bytes": _whole(cost.disk_bytes),
            "expected_from": self.basis,
        }
        return StageResult({**planned, **expected, "dry_run": True})

    def _lines(self) -> Iterator[str]:
        """Yields the estimate in words."""
        cost, each = self.cost, ""
        units = f"{_between(self.units)} {self.unit}{'s' * (self.units[1] != 1)}"
        if not cost.calls[1]:
            yield f"expected calls: none, {units} left"
            return
        if self.observed:
            low, mean, high = self.observed
            each = f", {mean:,.1f} per {self.unit} ({low:,.0f} to {high:,.0f})"
        yield f"expected calls: {_between(cost.calls)} for {units}; {self.basis}{each}"
        money = "no price set"
        if cost.cost_usd is not None:
            money = "{:,.4f} to {:,.4f} USD".format(*cost.cost_usd)
        yield (
            f"expected tokens: {_between(cost.input_tokens)} in, {_between(cost.output_tokens)} "
            f"out; {money}"
        )
        time = "unknown before the first calls"
        if self.seconds is not None:
            rate = f"{self.calls_per_s:,.1f} calls per second"
            time = f"{_joined(map(duration, self.seconds))} at {rate}"
        disk = _joined(decimal(round(size)) for size in cost.disk_bytes)
        yield f"expected time: {time}; disk: {disk}"
        if not self.observed:
            yield (
                f"these bounds are wide: a dry run estimates from {self.unit}s of this run, once "
                "there are some, or of another one (--history)"
            )


def _paid(by_role: Mapping[str, Totals], prices: Mapping[str, Price | None] | None) -> float | None:
    """Returns what calls cost at these prices, or did cost; None if a price is not known."""
    if prices is None:
        spent = sum(by_role.values(), Totals())
        return None if spent.unpriced else spent.cost_usd
    costs = [
        cost_usd(
            Usage(spent.input_tokens, spent.cached_tokens, spent.output_tokens), prices.get(role)
        )
        for role, spent in by_role.items()
    ]
    return None if None in costs else sum(filter(None, costs))


def expected_sum(observed: Sequence[float], units: Range) -> Range:
    """Returns the range in which the sum over `units` new ones is expected.

    This is about the 95 % prediction interval; 2 + 4/(n - 1) approximates Student's t. A single
    observation may be off by a factor of two.
    """
    number, mean = len(observed), fmean(observed)
    if number == 1:
        return units[0] * mean / 2, units[1] * mean * 2
    deviations = stdev(observed) * (2 + 4 / (number - 1))
    low, high = (
        count * mean + sign * deviations * math.sqrt(count * (1 + count / number))
        for count, sign in zip(units, (-1, 1), strict=True)
    )
    return max(low, 0.0), high


def estimate_from_run(
    context: StageContext,
    paths: Sequence[str],
    finished: str | None,
    unit: str,
    units: Range,
    bounds: CostRange,
    models: Mapping[str, ModelSettings] | None = None,
) -> CostEstimate:
    """Returns what some work costs by the history of a run; without any, the bounds.

    The run is that of `--history`, or else the stage's own.

    Args:
        paths: Patterns of the ledger paths of the stage's calls.
        finished: Table with a row for every finished question. None counts trajectories.
        unit: "question", "answer" or "rollout".
        bounds: Bounds of the costs of all, from the recipe.
        models: Models by role, whose prices apply; None uses the costs in the history.

    Raises:
        ConfigError: If `--history` does not name a run, or a run without such calls.
        StorageError: If the ledger cannot be read.
    """
    history_run = existing_run(context.history) if context.history else None
    run = context.run if history_run is None else history_run.folder
    finished_ids = question_ids(run, finished) if finished and run.is_dir() else set[str]()
    history = read_call_history(run / LEDGER, paths, finished_ids if finished else None)
    if history_run is not None:
        if history is None:
            raise ConfigError(f"--history: {run}: has no finished {unit}s of this stage")
        _warn_of_differences(context, history_run.recipe)
    elif history is not None and (record := read_record(run)) is not None:
        _warn_of_differences(context, recipe_of(run, record))
    if history is None:
        return CostEstimate(unit, units, bounds, "bounds from the recipe")
    each = [sum(by_role.values(), Totals()) for by_role in history.totals]
    prices = None
    if models is not None:
        prices = {role: model.price_per_million for role, model in models.items()}
    paid = [_paid(by_role, prices) for by_role in history.totals]
    priced = [dollars for dollars in paid if dollars is not None]
    calls_per_unit = [spent.calls for spent in each]
    calls = expected_sum(calls_per_unit, units)
    files = (path for pattern in STORED for path in run.glob(pattern))
    stored_bytes = sum(path.stat().st_size for path in files if path.is_file())
    cost = CostRange(
        calls,
        expected_sum([spent.input_tokens for spent in each], units),
        expected_sum([spent.output_tokens for spent in each], units),
        expected_sum(priced, units) if len(priced) == len(paid) else None,
        scale(calls, stored_bytes / history.calls),
    )
    source = "this run" if history_run is None else terminal_safe(str(run))
    return CostEstimate(
        unit,
        units,
        cost,
        f"from {len(calls_per_unit):,} {unit}{'s' * (len(calls_per_unit) != 1)} of {source}",
        (min(calls_per_unit), fmean(calls_per_unit), max(calls_per_unit)),
        history.calls_per_s,
    )


def _warn_of_differences(context: StageContext, other: Recipe) -> None:
    """Logs the settings of the other run that may make its costs differ."""
    settings = map(identity_settings, (other, context.recipe))
    old, new = (flat({name: blocks[name] for name in DECIDING}) for blocks in settings)
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    if names:
        context.log(
            f"note: the run that this estimate is from has other settings: {', '.join(names)}"
        )


def _whole(values: Range) -> list[int]:
    return [math.floor(values[0]), math.ceil(values[1])]


def _between(values: Range) -> str:
    return _joined(f"{number:,}" for number in _whole(values))


def _joined(values: Iterable[str]) -> str:
    return " to ".join(dict.fromkeys(values))


def duration(seconds: float) -> str:
    """Returns a duration in words."""
    for length, name in ((3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {name}"
    return f"{seconds:,.0f} s"
