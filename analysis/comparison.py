"""Compares policies: a row for each policy and stratum, and paired differences.

EM, F1 and cover-EM are means over answerable questions; a failed question counts as 0. So all
policies share one denominator, and failing on hard questions does not raise a mean. The judge's
verdict treats failed questions the same way. All other columns are means over the questions that
did not fail and have a value.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import fmean
from typing import Any, Literal

import numpy as np

from analysis.significance import Interval, crossed_bootstrap
from storage.records import FailedPrediction, Prediction

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
        name: [*own, *failed.get(name, ())] for name, own in predictions.items()
    }
    first = next((name for name in scored if name not in references), None)
    rows: list[PolicyRow] = []
    differences: list[Difference] = []
    for stratum in _strata([one for own in scored.values() for one in own]):
        here = {name: [one for one in own if one in stratum] for name, own in scored.items()}
        rows += [
            _row(name, stratum.name, own, is_reference=name in references)
            for name, own in here.items()
            if own
        ]
        for base, name in _compared(here, references):
            whole = stratum.name == EVERYTHING
            if whole or (base == first and len(here[base]) >= FEWEST):
                differences += _differences(
                    name, base, stratum.name, here[name], here[base], resamples, seed
                )
    return PolicyComparison(tuple(rows), tuple(differences))


def _compared(names: Collection[str], references: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yields (baseline, policy): each policy with all before it, then with every reference."""
    policies = [name for name in names if name not in references]
    yield from combinations(policies, 2)
    yield from ((one, policy) for one in names if one in references for policy in policies)


@dataclass(frozen=True, slots=True)
class _Stratum:
    """The questions whose `field` is `value`; all if no field is set."""

    name: str = EVERYTHING
    field: Literal["source", "type", "hops", "guessable"] | None = None
    value: str | int | None = None

    def __contains__(self, scored: Scored) -> bool:
        return self.field is None or getattr(scored, self.field) == self.value


def _strata(scored: Sequence[Scored]) -> list[_Stratum]:
    """Returns the whole set, then one stratum per source, type, number of hops and guessability.

    A field with only one value is left out.
    """
    strata = [_Stratum()]
    for field in ("source", "type", "hops"):
        values = sorted({v for one in scored if (v := getattr(one, field)) is not None})
        if len(values) > 1:
            strata += [_Stratum(f"{field} {value}", field, value) for value in values]
    if {True, False} <= {one.guessable for one in scored}:
        strata.append(_Stratum("guessable", "guessable", True))
        strata.append(_Stratum("not guessable", "guessable", False))
    return strata


def _row(policy: str, stratum: str, scored: Sequence[Scored], *, is_reference: bool) -> PolicyRow:
    own = [one for one in scored if isinstance(one, Prediction)]
    unanswerable = sum(one.em is None for one in scored)
    refused = [p for p in own if p.refused]
    rightly = sum(p.em is None for p in refused)
    values = {name: _known(getattr(one, name) for one in scored) for name in SCORES}
    values |= {name: _known(getattr(p, name) for p in own) for name in MEANS}
    ruled = [p.format_failures for p in own if p.format_failures is not None]
    broken = Counter(rule for failures in ruled for rule in failures)
    return PolicyRow(
        policy=policy,
        protocol=None if is_reference else next((p.protocol for p in own), None),
        stratum=stratum,
        n=len(scored),
        failed=len(scored) - len(own),
        answerable=len(scored) - unanswerable,
        means={
            **{name: _mean(known) for name, known in values.items()},
            "invalid": _mean([not p.format_ok for p in own]),
            "refusal_precision": rightly / len(refused) if unanswerable and refused else None,
            "refusal_recall": rightly / unanswerable if unanswerable else None,
        },
        counts={name: len(known) for name, known in values.items()},
        broken={rule: count / len(ruled) for rule, count in broken.most_common()},
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _differences(
    policy: str,
    baseline: str,
    stratum: str,
    own: Sequence[Scored],
    base: Sequence[Scored],
    resamples: int,
    seed: int,
) -> list[Difference]:
    """Returns one difference per metric; empty if no answerable question is shared."""
    by_item = {_item(one): one for one in base}
    shared = [(by_item[_item(one)], one) for one in own if _item(one) in by_item]
    found = []
    for metric in METRICS:
        scores = [(getattr(b, metric), getattr(p, metric)) for b, p in shared]
        known = [(b, p) for b, p in scores if b is not None and p is not None]
        if known:
            # As the tables store them: scores that are read back must equal those just made.
            before, after = np.array(known, dtype=np.float32).astype(float).T
            interval = crossed_bootstrap(before, after, resamples=resamples, seed=seed)
            found.append(Difference(policy, baseline, stratum, metric, interval))
    return found


def _item(scored: Scored) -> tuple[str, str, int]:
    return scored.source, scored.question_id, scored.seed
