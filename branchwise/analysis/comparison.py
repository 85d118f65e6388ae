"""Compares policies: a row for each policy and stratum, and paired differences.

EM, F1 and cover-EM are means over answerable questions; a failed question counts as 0. So all
policies share one denominator, and failing on hard questions does not raise a mean. The judge's
verdict treats failed questions the same way. All other columns are means over the questions that
did not fail and have a value.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from typing import Any, Literal

import numpy as np

from branchwise.base import known_mean
from branchwise.types import FailedPrediction, Prediction

from .significance import Interval, crossed_bootstrap

Metric = Literal["em", "f1"]
Scored = Prediction | FailedPrediction
METRICS: tuple[Metric, ...] = ("em", "f1")
SCORES = ("em", "f1", "cover_em", "judge")
"""Scores of answers; failed questions have them too."""
MEANS = (
    "supporting_recall", "steps", "searches", "valid_searches", "backtracks", "forced", "refused",
    "relevance", "relevance_full", "all_correct", "retrievals", "corrections", "evaluated",
    "copied", "forged", "output_tokens", "turn_tokens", "latency_s",
)  # fmt: skip
"""Columns of `predictions` that are averaged without conversion."""
EVERYTHING = "all"
"""Name of the stratum that holds every question."""
FEWEST = 10
"""Smallest stratum with an interval: resampling a few questions gives intervals that are too
narrow.
"""


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One policy on one stratum.

    Attributes:
        protocol: Protocol of the policy; None for references, and if all questions failed.
        n: Number of questions, failed ones included.
        answerable: Number of answerable questions; em, f1 and cover_em are means over these.
        failed: Number of questions without a prediction.
        means: Means by name: `SCORES`, shares and `relevance` in [0, 1], the others per question;
            None without any value. `invalid` is the share of questions whose trajectory breaks the
            protocol's format.
            `refusal_precision` and `refusal_recall` are None if every question is answerable;
            precision also without refusals. A failed question does not count as refused.
        counts: Number of questions of each mean, by its name.
        broken: Share of replies that break a rule of the protocol's format, by rule.
    """

    policy: str
    protocol: str | None
    stratum: str
    n: int
    failed: int
    answerable: int
    means: Mapping[str, float | None]
    counts: Mapping[str, int]
    broken: Mapping[str, float]

    def totals(self) -> dict[str, Any]:
        """Returns all figures side by side, as in `metrics.json`."""
        figures = asdict(self)
        return {**figures, **figures.pop("means")}


@dataclass(frozen=True, slots=True)
class Difference:
    """`policy` − `baseline` in one metric, over the questions that both were asked."""

    policy: str
    baseline: str
    stratum: str
    metric: Metric
    interval: Interval


@dataclass(frozen=True, slots=True)
class PolicyComparison:
    """Rows and differences, the whole set first, then by source, type, hops and guessability.

    On the whole set every policy is compared with all policies before it and with every reference;
    in a stratum only with the first policy.
    """

    rows: tuple[PolicyRow, ...]
    differences: tuple[Difference, ...]


def compare(
    predictions: Mapping[str, Sequence[Prediction]],
    unanswered: Mapping[str, Sequence[FailedPrediction]] | None = None,
    *,
    references: Collection[str] = (),
    resamples: int = 10_000,
    seed: int = 0,
) -> PolicyComparison:
    """Compares policies.

    Args:
        predictions: Answers of each policy, in the order of the table.
        references: Names of baselines that are not policies. Policies are compared with them, but
            they are not compared with each other.

    Raises:
        ValueError: If `predictions` is empty.
    """
    if not predictions:
        raise ValueError("no policies to compare")
    failed = unanswered or {}
    scored: dict[str, list[Scored]] = {
        name: [*answered, *failed.get(name, ())] for name, answered in predictions.items()
    }
    first = next((name for name in scored if name not in references), None)
    rows: list[PolicyRow] = []
    differences: list[Difference] = []
    for stratum, is_in in _strata([row for of_policy in scored.values() for row in of_policy]):
        group = {name: list(filter(is_in, of_policy)) for name, of_policy in scored.items()}
        rows += [
            _row(name, stratum, of_policy, is_reference=name in references)
            for name, of_policy in group.items()
            if of_policy
        ]
        for base, name in _compared(group, references):
            if stratum == EVERYTHING or (base == first and len(group[base]) >= FEWEST):
                differences += [
                    Difference(name, base, stratum, metric, interval)
                    for metric, interval in _intervals(group[base], group[name], resamples, seed)
                ]
    return PolicyComparison(tuple(rows), tuple(differences))


def _compared(names: Collection[str], references: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yields (baseline, policy): each policy with all before it, then with every reference."""
    policies = [name for name in names if name not in references]
    yield from combinations(policies, 2)
    yield from ((base, policy) for base in names if base in references for policy in policies)


def _strata(scored: Sequence[Scored]) -> Iterator[tuple[str, Callable[[Scored], bool]]]:
    """Yields the whole set, then one stratum per source, type, number of hops and guessability.

    Each is a name and whether a question is part of it. A field with only one value is left out.
    """
    yield EVERYTHING, lambda row: True
    for field in ("source", "type", "hops"):
        values = sorted({value for row in scored if (value := getattr(row, field)) is not None})
        if len(values) > 1:
            for value in values:
                yield f"{field} {value}", partial(_has, field, value)
    if {True, False} <= {row.guessable for row in scored}:
        yield "guessable", partial(_has, "guessable", True)
        yield "not guessable", partial(_has, "guessable", False)


def _has(field: str, value: object, scored: Scored) -> bool:
    return bool(getattr(scored, field) == value)


def _row(policy: str, stratum: str, scored: Sequence[Scored], *, is_reference: bool) -> PolicyRow:
    answered = [row for row in scored if isinstance(row, Prediction)]
    unanswerable = sum(row.em is None for row in scored)
    refused = [p for p in answered if p.refused]
    rightly = sum(p.em is None for p in refused)
    values = {name: _known(getattr(row, name) for row in scored) for name in SCORES}
    values |= {name: _known(getattr(p, name) for p in answered) for name in MEANS}
    ruled = [p.format_failures for p in answered if p.format_failures is not None]
    broken = Counter(rule for failures in ruled for rule in failures)
    return PolicyRow(
        policy=policy,
        protocol=None if is_reference else next((p.protocol for p in answered), None),
        stratum=stratum,
        n=len(scored),
        failed=len(scored) - len(answered),
        answerable=len(scored) - unanswerable,
        means={
            **{name: known_mean(numbers) for name, numbers in values.items()},
            "invalid": known_mean(not p.format_ok for p in answered),
            "refusal_precision": rightly / len(refused) if unanswerable and refused else None,
            "refusal_recall": rightly / unanswerable if unanswerable else None,
        },
        counts={name: len(numbers) for name, numbers in values.items()},
        broken={rule: count / len(ruled) for rule, count in broken.most_common()},
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _intervals(
    base: Sequence[Scored], policy: Sequence[Scored], resamples: int, seed: int
) -> Iterator[tuple[Metric, Interval]]:
    """Yields the difference in each metric; nothing if no answerable question is shared."""
    by_item = {_item(row): row for row in base}
    shared = [(by_item[_item(row)], row) for row in policy if _item(row) in by_item]
    for metric in METRICS:
        scores = [(getattr(b, metric), getattr(o, metric)) for b, o in shared]
        score_pairs = [(b, o) for b, o in scores if b is not None and o is not None]
        if score_pairs:
            # As the tables store them: scores that are read back must equal those just made.
            before, after = np.array(score_pairs, dtype=np.float32).astype(float).T
            yield metric, crossed_bootstrap(before, after, resamples=resamples, seed=seed)


def _item(scored: Scored) -> tuple[str, str, int]:
    return scored.source, scored.question_id, scored.seed
