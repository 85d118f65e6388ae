"""The costs of a run, for totals and closing lines."""

from collections.abc import Iterator
from typing import Any

from runs.recipe import LimitSettings
from storage.ledger import Ledger
from storage.ledger_rows import REPORTED, Totals

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
    bases = ledger.bases().items()
    return {COUNTED_BY.get(basis, basis): n for basis, n in bases if basis != REPORTED}


def describe_costs(ledger: Ledger, limits: LimitSettings) -> Iterator[str]:
    """Yields sentences about the run's costs and the caveats of those figures."""
    spent = ledger.totals()
    cost = f", {spent.cost_usd:,.4f} USD" if spent.cost_usd else ""
    yield f"{spent.calls} calls in the ledger{cost}"
    if estimated := estimates(ledger):
        how = ", ".join(f"{n:,} {words}" for words, n in sorted(estimated.items()))
        yield (
            f"the endpoint reported no usable token counts for {spent.estimated:,} of "
            f"{spent.calls:,} calls, so limits and costs use ours: {how}"
        )
    if limits.max_usd is not None and spent.unpriced:
        yield f"limits.max_usd does not count {spent.unpriced:,} calls of models without a price"
