"""Savings of searches: their sign, significance and effect on EM."""

import pytest
from evo_answers import searching
from sample_records import a_question

from branchwise.analysis.comparison import Scored
from branchwise.evaluation.prediction_scoring import score_failure
from branchwise.studies.arms import Arm, EvaluatedArm
from branchwise.studies.evo.savings import saving_sheet, savings
from branchwise.studies.study_tables import Claim


def evaluated_arm(name: str, count: int, *by_seed: str) -> EvaluatedArm:
    rows: dict[int, list[Scored]] = {
        seed: [*searching(count, answered, 1)] for seed, answered in enumerate(by_seed)
    }
    return EvaluatedArm(Arm(name), rows)


def test_three_searches_instead_of_four_save_25_percent() -> None:
    arms = [
        evaluated_arm("start", 2, "111111"),
        evaluated_arm("two-stage", 4, "111000", "111000"),
        evaluated_arm("time-dynamic", 3, "111000", "111001"),
    ]
    claims = [
        Claim("time-dynamic", "two-stage", paper="15 %"),
        Claim("time-dynamic", "start"),
        Claim("time-dynamic", "nobody"),
    ]
    found = savings(arms, claims, 0)
    assert [one.claim.baseline for one in found] == ["two-stage", "start"]
    sheet = saving_sheet(found)
    one, other = (dict(zip(sheet.head, row, strict=True)) for row in sheet.rows)
    assert (one["searches"], one["searches there"]) == ("3.00", "4.00")
    assert one["saved % [95 %]"] == "+25.0 [+25.0, +25.0] *"
    assert one["EM [95 %]"].startswith("+8.3 ["), "one of six answers differs, for one of two seeds"
    assert (one["questions"], one["answerable"]) == ("7", "6"), (
        "unanswerable questions count for searches"
    )
    assert one["paper (other models and data)"] == "15 %"
    assert other["saved % [95 %]"] == "-50.0 [-50.0, -50.0] *", (
        "more searches are a negative saving"
    )
    assert other["paper (other models and data)"] == "–"


@pytest.mark.parametrize(
    ("own", "verdict"),
    [("1" * 40, "yes"), ("0" * 20 + "1" * 20, "no"), ("0" + "1" * 39, "not shown")],
)
def test_non_inferiority_of_em_depends_on_its_interval(own: str, verdict: str) -> None:
    arms = [evaluated_arm("base", 4, "1" * 40), evaluated_arm("arm", 3, own)]
    (found,) = savings(arms, [Claim("arm", "base")], 0)
    assert found.non_inferiority == verdict


def test_a_failed_question_lowers_em_and_is_left_out_of_the_saving() -> None:
    base, arm = evaluated_arm("base", 4, "11"), evaluated_arm("arm", 3, "11")
    arm.predictions[0] = [
        *(row for row in arm.predictions[0] if row.question_id != "q1"),
        score_failure(a_question(id="q1"), seed=0),
    ]
    (found,) = savings([base, arm], [Claim("arm", "base")], 0)
    assert (found.em.mean, found.em.n) == (-0.5, 2)
    assert found.share is not None
    assert (found.share.mean, found.share.n) == (0.25, 2), (
        "the saving should be over q0 and the unanswerable question"
    )


def test_a_baseline_without_searches_has_no_saving() -> None:
    arms = [evaluated_arm("base", 0, "11"), evaluated_arm("arm", 1, "11")]
    found = savings(arms, [Claim("arm", "base")], 0)
    row = dict(zip(saving_sheet(found).head, saving_sheet(found).rows[0], strict=True))
    assert (row["saved % [95 %]"], row["p (Holm)"]) == ("–", "–")


def test_p_values_of_savings_are_corrected_for_their_number() -> None:
    arms = [
        evaluated_arm("base", 4, "1" * 8),
        evaluated_arm("arm", 3, "1" * 8),
        evaluated_arm("more", 5, "1" * 8),
    ]
    alone = savings(arms, [Claim("arm", "base")], 0)
    both = savings(arms, [Claim("arm", "base"), Claim("more", "base")], 0)
    assert alone[0].p == pytest.approx(2 / 2**9), "9 questions, all in the same direction"
    assert [one.p for one in both] == pytest.approx([2 * alone[0].p] * 2)
