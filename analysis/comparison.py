"""Policies side by side: a row for each policy and stratum, and paired differences.

EM, F1 and cover-EM are means over answerable questions. A question that failed counts there as 0
in its policy's mean, not as absent: all policies keep one denominator, and none gains by failing
on the hard questions. Everything else is over the questions that did not fail.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Literal

from analysis.significance import Interval, paired_bootstrap
from storage.records import Prediction, Unanswered

Metric = Literal["em", "f1"]
Scored = Prediction | Unanswered
METRICS: tuple[Metric, ...] = ("em", "f1")
EVERYTHING = "all"
"""Name of the stratum that holds every question."""
FEWEST = 10
"""A stratum of fewer questions gets no interval: resampled, a handful looks like certainty."""


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One policy on one stratum.

    Attributes:
        protocol: that it was asked in; null for references, and where all failed.
        n: questions, failed ones included; `answerable` of them count for em, f1 and cover_em.
        failed: questions without a prediction.
        em, f1, cover_em, supporting_recall: means in [0, 1]; null where nothing has a value.
        steps, searches, valid_searches, backtracks: means a question; null where all failed.
        invalid, forced, refused: shares in [0, 1]; null where all failed.
        refusal_precision, refusal_recall: null where every question is answerable (precision
            also where nothing was refused). A failed question is not refused.
        output_tokens, latency_s: means a question; null where all failed.
    """

    policy: str
    protocol: str | None
    stratum: str
    n: int
    failed: int
    answerable: int
    em: float | None
    f1: float | None
    cover_em: float | None
    supporting_recall: float | None
    steps: float | None
    searches: float | None
    valid_searches: float | None
    backtracks: float | None
    invalid: float | None
    forced: float | None
    refused: float | None
    refusal_precision: float | None
    refusal_recall: float | None
    output_tokens: float | None
    latency_s: float | None


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
    """Rows and differences, the whole set first, then by source, by type and by guessability.

    On the whole set every policy is compared with every one before it and with every reference,
    elsewhere with the first policy.
    """

    rows: tuple[PolicyRow, ...]
    differences: tuple[Difference, ...]


def compare(
    predictions: Mapping[str, Sequence[Prediction]],
    unanswered: Mapping[str, Sequence[Unanswered]] | None = None,
    *,
    references: Collection[str] = (),
    resamples: int = 10_000,
    seed: int = 0,
) -> PolicyComparison:
    """Compare policies.

    Args:
        predictions: by policy, in the order of the table.
        unanswered: by policy, the questions that failed.
        references: those of them that the others are held against (baselines that are no
            policies); they are compared with nothing themselves.
        resamples: of each paired bootstrap.
        seed: of the bootstrap.

    Raises:
        ValueError: no policy.
    """
    if not predictions:
        raise ValueError("no policy to compare")
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
    """(baseline, policy): every policy with every one before it, then with every reference."""
    policies = [name for name in names if name not in references]
    yield from combinations(policies, 2)
    yield from ((one, policy) for one in names if one in references for policy in policies)


@dataclass(frozen=True, slots=True)
class _Stratum:
    """The questions whose `field` is `value`; all of them where there is no field."""

    name: str = EVERYTHING
    field: Literal["source", "type", "guessable"] | None = None
    value: str | bool | None = None

    def __contains__(self, scored: Scored) -> bool:
        return self.field is None or getattr(scored, self.field) == self.value


def _strata(scored: Sequence[Scored]) -> list[_Stratum]:
    """All, then every source, every type and either guessability, where more than one is there."""
    strata = [_Stratum()]
    for field in ("source", "type"):
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
    return PolicyRow(
        policy=policy,
        protocol=None if is_reference else next((p.protocol for p in own), None),
        stratum=stratum,
        n=len(scored),
        failed=len(scored) - len(own),
        answerable=len(scored) - unanswerable,
        em=_mean(one.em for one in scored),
        f1=_mean(one.f1 for one in scored),
        cover_em=_mean(one.cover_em for one in scored),
        supporting_recall=_mean(p.supporting_recall for p in own),
        steps=_mean(p.steps for p in own),
        searches=_mean(p.searches for p in own),
        valid_searches=_mean(p.valid_searches for p in own),
        backtracks=_mean(p.backtracks for p in own),
        invalid=_mean(not p.format_ok for p in own),
        forced=_mean(p.forced for p in own),
        refused=_mean(p.refused for p in own),
        refusal_precision=rightly / len(refused) if unanswerable and refused else None,
        refusal_recall=rightly / unanswerable if unanswerable else None,
        output_tokens=_mean(p.output_tokens for p in own),
        latency_s=_mean(p.latency_s for p in own),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _differences(
    policy: str,
    baseline: str,
    stratum: str,
    own: Sequence[Scored],
    base: Sequence[Scored],
    resamples: int,
    seed: int,
) -> list[Difference]:
    """One difference a metric; none where no answerable question is shared."""
    by_item = {_item(one): one for one in base}
    shared = [(by_item[_item(one)], one) for one in own if _item(one) in by_item]
    found = []
    for metric in METRICS:
        scores = [(getattr(b, metric), getattr(p, metric)) for b, p in shared]
        known = [(b, p) for b, p in scores if b is not None and p is not None]
        if known:
            before, after = zip(*known, strict=True)
            interval = paired_bootstrap(before, after, resamples=resamples, seed=seed)
            found.append(Difference(policy, baseline, stratum, metric, interval))
    return found


def _item(scored: Scored) -> tuple[str, str, int]:
    return scored.source, scored.question_id, scored.seed
