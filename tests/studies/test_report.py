"""Reports of a study: paired differences, corrections within a family, and tables."""

import numpy as np
import pytest
from sample_records import a_prediction, a_question

from branchwise.analysis.comparison import Scored
from branchwise.analysis.significance import Interval
from branchwise.evaluation.prediction_scoring import score_failure
from branchwise.runs.studies.study_runner import StageTotals
from branchwise.studies.arms import Arm, EvaluatedArm
from branchwise.studies.study_tables import (
    Claim,
    Stratum,
    answer_sheet,
    arm_sheet,
    claim_sheet,
    findings,
    minimum_detectable_effect,
    scores,
)
from branchwise.studies.study_tables import stratum_sheet as strata_of


def evaluated_arm(name: str, *by_seed: str, trainer: bool = True) -> EvaluatedArm:
    """Returns an arm whose answers are right ("1") or wrong ("0"), one string per seed."""
    arm = Arm(name, "train-dpo" if trainer else None)
    rows: dict[int, list[Scored]] = {
        seed: [
            a_prediction(question_id=f"q{n}", em=float(right), f1=float(right), guessable=n < 2)
            for n, right in enumerate(answers)
        ]
        for seed, answers in enumerate(by_seed)
    }
    totals: list[StageTotals] = [{"examples": 10, "movement": {"kl": 0.5}} for _ in by_seed]
    return EvaluatedArm(arm, rows, totals if trainer else [], [])


def test_differences_are_arm_minus_baseline() -> None:
    start = evaluated_arm("warm-start", "0000000000", trainer=False)
    dpo = evaluated_arm("dpo", "1111100000", "1111111000")
    (found,) = findings({"warm-start": start, "dpo": dpo}, [Claim("dpo", "warm-start")], 0)
    assert found.em.mean == pytest.approx(0.6)
    assert found.em.low > 0
    assert found.em.seeds == 2
    assert found.disagree == pytest.approx(0.6)
    assert found.p == pytest.approx(2 / 2**7), "7 questions changed, all in the same direction"


def test_the_claim_table_states_how_many_trainings_it_covers() -> None:
    start = evaluated_arm("warm-start", "0000", trainer=False)
    claims = [Claim("dpo", "warm-start")]
    for seeds, told in ((1, "one training per arm"), (2, "over questions and seeds)")):
        dpo = evaluated_arm("dpo", *["0110"] * seeds)
        found = findings({"warm-start": start, "dpo": dpo}, claims, 0)
        assert told in claim_sheet(found).title


def test_minimum_detectable_effect_depends_on_the_widest_interval() -> None:
    narrow, wide = Interval(0.05, 0.04, 0.06, 180, 9), Interval(0.0, -0.0686, 0.0686, 200, 9)
    assert minimum_detectable_effect([narrow, wide]).startswith(
        "200 questions detect a true difference in EM of 9.8 p"
    )
    assert "saving of steps of 1.4 % four times in five" in minimum_detectable_effect(
        [narrow], "saving of steps", "%"
    )
    assert minimum_detectable_effect([]) == ""


def test_the_minimum_detectable_effect_is_detected_in_80_percent() -> None:
    rng, error = np.random.default_rng(0), 0.035
    told = minimum_detectable_effect([Interval(0.0, -1.96 * error, 1.96 * error, 200, 9)])
    effect = float(told.split(" of ")[1].split()[0]) / 100
    seen = rng.normal(effect, error, 20_000) > 1.96 * error
    assert seen.mean() == pytest.approx(0.8, abs=0.01)


def test_holm_corrects_within_the_primary_family() -> None:
    arms = {
        "warm-start": evaluated_arm("warm-start", "0" * 12, trainer=False),
        "dpo": evaluated_arm("dpo", "1" * 8 + "0" * 4),
        "sft": evaluated_arm("sft", "1" + "0" * 11),
    }
    claims = [
        Claim("dpo", "warm-start", primary=True),
        Claim("dpo", "sft", primary=True),
        Claim("sft", "warm-start"),
        Claim("dpo", "answers"),
    ]
    first, second, alone = findings(arms, claims, 0)
    assert first.adjusted == pytest.approx(2 * first.p)
    assert second.adjusted == pytest.approx(max(second.p, 2 * first.p))
    assert alone.adjusted == alone.p
    cells = claim_sheet([first])
    assert cells.rows[0][0] == "dpo − warm-start (primary)"
    assert cells.rows[0][1].startswith("+66.7 [")


def test_a_failed_question_counts_as_wrong() -> None:
    start = evaluated_arm("warm-start", "1111", trainer=False)
    dpo = evaluated_arm("dpo", "111")
    dpo.predictions[0].append(score_failure(a_question(id="q3"), seed=0))
    (found,) = findings({"warm-start": start, "dpo": dpo}, [Claim("dpo", "warm-start")], 0)
    assert (found.em.n, found.em.mean, found.f1.mean) == (4, -0.25, -0.25)
    row = dict(zip(arm_sheet([dpo]).head, arm_sheet([dpo]).rows[0], strict=True))
    assert (row["EM"], row["F1"], row["questions"], row["failed"]) == ("75.0", "75.0", "4", "1")
    assert row["steps"] == "3.0", "steps should be averaged over the answered questions"


def test_an_arm_with_only_failed_questions_has_a_row() -> None:
    none = EvaluatedArm(Arm("dpo"), {0: [score_failure(a_question(), seed=0)]})
    row = dict(zip(arm_sheet([none]).head, arm_sheet([none]).rows[0], strict=True))
    assert (row["EM"], row["failed"], row["steps"]) == ("0.0", "1", "–")


def test_only_questions_that_both_arms_have_are_paired() -> None:
    start = evaluated_arm("warm-start", "0000", trainer=False)
    dpo = evaluated_arm("dpo", "1111")
    dpo.predictions[0].pop()
    (found,) = findings({"warm-start": start, "dpo": dpo}, [Claim("dpo", "warm-start")], 0)
    assert found.em.n == 3


def test_scores_are_indexed_by_question_and_seed() -> None:
    dpo = evaluated_arm("dpo", "10", "11")
    keys = [("atlas", "q1"), ("atlas", "q0")]
    assert np.array_equal(scores(dpo, keys, "em"), [[0, 1], [1, 1]])


def test_tables_report_trainings_and_strata() -> None:
    dpo = evaluated_arm("dpo", "1100", "1000")
    row = dict(zip(arm_sheet([dpo]).head, arm_sheet([dpo]).rows[0], strict=True))
    assert (row["EM"], row["SD"], row["seeds"]) == ("37.5", "17.7", "2")
    assert (row["pairs"], row["KL"]) == ("10", "0.500")
    guessed = Stratum("guessable", lambda one: one.guessable is True)
    assert strata_of([dpo], [guessed]).rows == (("dpo", "75.0"),)


def test_f1_and_em_have_their_own_intervals() -> None:
    start, dpo = evaluated_arm("warm-start", "0000", trainer=False), evaluated_arm("dpo", "0011")
    dpo.predictions[0] = [
        a_prediction(question_id=row.question_id, em=row.em, f1=0.5) for row in dpo.predictions[0]
    ]
    (found,) = findings({"warm-start": start, "dpo": dpo}, [Claim("dpo", "warm-start")], 0)
    assert (found.em.mean, found.f1.mean) == (0.5, 0.5)
    assert (found.f1.low, found.f1.high) == (0.5, 0.5), "every question gains the same"


def test_disagreement_counts_different_answers_even_if_em_is_equal() -> None:
    arms = {"sft": evaluated_arm("sft", "0110"), "dpo": evaluated_arm("dpo", "1010")}
    (found,) = findings(arms, [Claim("dpo", "sft")], 0)
    assert (found.em.mean, found.disagree) == (0.0, 0.5)


def test_seeds_are_paired_by_number_and_not_by_order() -> None:
    arms = {
        "sft": evaluated_arm("sft", "0110", "1001"),
        "dpo": evaluated_arm("dpo", "0110", "1001"),
    }
    arms["dpo"].predictions = dict(reversed(arms["dpo"].predictions.items()))
    (found,) = findings(arms, [Claim("dpo", "sft")], 0)
    assert (found.disagree, found.em.low, found.em.high) == (0.0, 0.0, 0.0)


def test_invalid_share_counts_replies_without_the_format() -> None:
    rows: list[Scored] = [a_prediction(question_id=f"q{n}", format_ok=n > 0) for n in range(4)]
    sheet = arm_sheet([EvaluatedArm(Arm("dpo"), {0: rows})])
    assert dict(zip(sheet.head, sheet.rows[0], strict=True))["invalid %"] == "25.0"


def test_a_failed_question_lowers_the_recall_of_refusals() -> None:
    unanswerable = {"em": None, "f1": None, "cover_em": None}
    rows: list[Scored] = [
        a_prediction(question_id="q0", refused=True, **unanswerable),
        a_prediction(question_id="q1", refused=True),
        score_failure(a_question(id="q2", answerable=False, answers=()), seed=0),
    ]
    sheet = arm_sheet([EvaluatedArm(Arm("dpo"), {0: rows})])
    row = dict(zip(sheet.head, sheet.rows[0], strict=True))
    assert (row["refusal precision"], row["refusal recall"]) == ("50.0", "50.0")


def test_answer_sheet_lists_right_and_wrong_answers() -> None:
    sheet = answer_sheet([evaluated_arm("dpo", "10")])
    assert sheet.rows == (
        ("dpo", "0", "atlas", "q0", "1", "1"),
        ("dpo", "0", "atlas", "q1", "0", "0"),
    )
