"""Does an arm search less than another, and answer as well? (EVO-RAG section 5.2: 11.5 → 9.8.)

An arm can easily search less if it answers worse. So a saving is reported with the difference in
EM, and with the result of a non-inferiority test: the interval must be above −`MARGIN`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from branchwise.analysis import Interval, crossed_bootstrap, interval
from branchwise.base import NONE, Sheet, number, percent
from branchwise.types import Prediction

from ..arms import EvaluatedArm
from ..significance import holm, permutation_p, relative_saving
from ..study_tables import (
    PAPER,
    Claim,
    interval_scope,
    minimum_detectable_effect,
    scores,
    shared_questions,
)

MARGIN = 0.02
"""Loss of EM that counts as equal: the paper calls −1.8 points (LLaMA, table 4) comparable."""

Counted = Literal["searches", "steps"]


@dataclass(frozen=True)
class Saving:
    """Savings of `claim.arm` against `claim.baseline`.

    Attributes:
        count, baseline_count: Mean per question, over the questions that neither arm failed on.
        share: 1 − count / baseline_count; None if the baseline's count is 0.
        p: P-value of the permutation test on the counts, by Holm over all savings of the table; 1
            if `share` is None.
        em: Difference in EM over the answerable questions, with failed ones as wrong.
    """

    claim: Claim
    baseline_count: float
    count: float
    share: Interval | None
    p: float
    em: Interval

    @property
    def non_inferiority(self) -> str:
        """Whether EM is lower by at most `MARGIN`: "yes", "no", or "not shown"."""
        if self.em.low > -MARGIN:
            return "yes"
        return "no" if self.em.high < -MARGIN else "not shown"


def savings(
    results: Sequence[EvaluatedArm],
    claims: Sequence[Claim],
    seed: int,
    counted: Counted = "searches",
) -> list[Saving]:
    """Returns the savings of claims whose arms were evaluated; `seed` seeds the bootstrap."""
    arms = {result.arm.name: result for result in results if result.predictions}
    measured = [
        _saving(claim, arms[claim.arm], arms[claim.baseline], seed, counted)
        for claim in claims
        if {claim.arm, claim.baseline} <= arms.keys()
    ]
    adjusted = holm([saving.p for saving in measured])
    return [replace(saving, p=p) for saving, p in zip(measured, adjusted, strict=True)]


def _saving(
    claim: Claim, arm: EvaluatedArm, base: EvaluatedArm, seed: int, counted: Counted
) -> Saving:
    answered = sorted(shared_questions([arm, base], lambda row: isinstance(row, Prediction)))
    before, after = (scores(evaluated, answered, counted) for evaluated in (base, arm))
    graded = sorted(shared_questions([arm, base]))
    em = [scores(evaluated, graded, "em") for evaluated in (base, arm)]
    counts = bool(answered) and before.mean() > 0
    return Saving(
        claim=claim,
        baseline_count=float(before.mean()) if answered else 0.0,
        count=float(after.mean()) if answered else 0.0,
        share=relative_saving(before, after, seed=seed) if counts else None,
        p=permutation_p(before, after, seed=seed) if counts else 1.0,
        em=crossed_bootstrap(*em, seed=seed),
    )


def saving_size(measured: Sequence[Saving], counted: Counted = "searches") -> str:
    """Describes the effect that a table of savings can detect."""
    shares = [saving.share for saving in measured if saving.share]
    return minimum_detectable_effect(shares, f"saving of {counted}", "%")


def saving_sheet(measured: Sequence[Saving], counted: Counted = "searches") -> Sheet:
    """Returns one row per claim."""
    head = (
        "arm", "against", counted, f"{counted} there", "saved % [95 %]", "p (Holm)", "EM [95 %]",
        f"EM lower by < {percent(MARGIN)}", "questions", "answerable",
    )  # fmt: skip
    rows = tuple(
        (
            saving.claim.arm,
            saving.claim.baseline,
            number(saving.count, 2),
            number(saving.baseline_count, 2),
            interval(saving.share) if saving.share else NONE,
            f"{saving.p:.4f}" if saving.share else NONE,
            interval(saving.em),
            saving.non_inferiority,
            str(saving.share.n if saving.share else 0),
            str(saving.em.n),
        )
        for saving in measured
    )
    shares = [saving.share for saving in measured if saving.share]
    title = f"{counted.capitalize()} (per question; intervals over {interval_scope(shares)})"
    sheet = Sheet(title, head, rows, names=2)
    return sheet.with_column(PAPER, [saving.claim.paper for saving in measured])
