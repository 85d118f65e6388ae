"""Policies side by side: a row for each policy and stratum, and paired differences to a baseline.

EM, F1 and cover-EM are means over answerable questions; everything else is over all questions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Literal

from evaluation.significance import Interval, paired_bootstrap
from storage.records import Prediction

Metric = Literal["em", "f1"]
METRICS: tuple[Metric, ...] = ("em", "f1")
EVERYTHING = "all"
"""Name of the stratum that holds every question."""


@dataclass(frozen=True, slots=True)
class Row:
    """One policy on one stratum.

    Attributes:
        n: questions, `answerable` of them count for em, f1 and cover_em.
        em, f1, cover_em, supporting_recall: means in [0, 1]; null where nothing has a value.
        steps, searches, valid_searches: means a question.
        invalid, forced, refused: shares in [0, 1].
        refusal_precision, refusal_recall: null where every question is answerable (precision
            also where nothing was refused).
        output_tokens, latency_s: means a question.
    """

    policy: str
    stratum: str
    n: int
    answerable: int
    em: float | None
    f1: float | None
    cover_em: float | None
    supporting_recall: float | None
    steps: float
    searches: float
    valid_searches: float
    invalid: float
    forced: float
    refused: float
    refusal_precision: float | None
    refusal_recall: float | None
    output_tokens: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Difference:
    """`policy` − `baseline` in one metric, over the questions that both answered."""

    policy: str
    baseline: str
    stratum: str
    metric: Metric
    interval: Interval


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows and differences, the whole set first, then by source and by type.

    On the whole set every policy is compared with every one before it, elsewhere with the first.
    """

    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]


def compare(
    predictions: Mapping[str, Sequence[Prediction]],
    *,
    resamples: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Compare policies.

    Args:
        predictions: by policy, in the order of the table.
        resamples: of each paired bootstrap.
        seed: of the bootstrap.

    Raises:
        ValueError: no policy.
    """
    if not predictions:
        raise ValueError("no policy to compare")
    rows: list[Row] = []
    differences: list[Difference] = []
    for stratum in _strata([p for own in predictions.values() for p in own]):
        here = {name: [p for p in own if p in stratum] for name, own in predictions.items()}
        rows += [_row(name, stratum.name, own) for name, own in here.items() if own]
        for base, name in combinations(here, 2):
            if stratum.name == EVERYTHING or base == next(iter(here)):
                differences += _differences(
                    name, base, stratum.name, here[name], here[base], resamples, seed
                )
    return Comparison(tuple(rows), tuple(differences))


@dataclass(frozen=True, slots=True)
class _Stratum:
    """The predictions whose `field` is `value`; all of them where there is no field."""

    field: Literal["source", "type"] | None = None
    value: str | None = None

    @property
    def name(self) -> str:
        return EVERYTHING if self.field is None else f"{self.field} {self.value}"

    def __contains__(self, prediction: Prediction) -> bool:
        return self.field is None or getattr(prediction, self.field) == self.value


def _strata(predictions: Sequence[Prediction]) -> list[_Stratum]:
    """All, then every source and every type where there is more than one of them."""
    strata = [_Stratum()]
    for field in ("source", "type"):
        values = sorted({v for p in predictions if (v := getattr(p, field)) is not None})
        if len(values) > 1:
            strata += [_Stratum(field, value) for value in values]
    return strata


def _row(policy: str, stratum: str, own: Sequence[Prediction]) -> Row:
    unanswerable = [p for p in own if p.em is None]
    refused = [p for p in own if p.refused]
    rightly = sum(p.refused for p in unanswerable)
    return Row(
        policy=policy,
        stratum=stratum,
        n=len(own),
        answerable=len(own) - len(unanswerable),
        em=_mean(p.em for p in own),
        f1=_mean(p.f1 for p in own),
        cover_em=_mean(p.cover_em for p in own),
        supporting_recall=_mean(p.supporting_recall for p in own),
        steps=fmean(p.steps for p in own),
        searches=fmean(p.searches for p in own),
        valid_searches=fmean(p.valid_searches for p in own),
        invalid=fmean(not p.format_ok for p in own),
        forced=fmean(p.forced for p in own),
        refused=len(refused) / len(own),
        refusal_precision=rightly / len(refused) if unanswerable and refused else None,
        refusal_recall=rightly / len(unanswerable) if unanswerable else None,
        output_tokens=fmean(p.output_tokens for p in own),
        latency_s=fmean(p.latency_s for p in own),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _differences(
    policy: str,
    baseline: str,
    stratum: str,
    own: Sequence[Prediction],
    base: Sequence[Prediction],
    resamples: int,
    seed: int,
) -> list[Difference]:
    """One difference a metric; none where no answerable question is shared."""
    by_item = {_item(p): p for p in base}
    shared = [(by_item[_item(p)], p) for p in own if _item(p) in by_item]
    found = []
    for metric in METRICS:
        scores = [(getattr(b, metric), getattr(p, metric)) for b, p in shared]
        known = [(b, p) for b, p in scores if b is not None and p is not None]
        if known:
            before, after = zip(*known, strict=True)
            interval = paired_bootstrap(before, after, resamples=resamples, seed=seed)
            found.append(Difference(policy, baseline, stratum, metric, interval))
    return found


def _item(prediction: Prediction) -> tuple[str, str, int]:
    return prediction.source, prediction.question_id, prediction.seed
