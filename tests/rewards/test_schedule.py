"""The weights of EVO-RAG: table 1, and how they change within an episode."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchwise.rewards.evo_rag.schedule import weights
from branchwise.rewards.settings import REWARDS, EvoRagSettings

PAPER = """
Retrieval Bonus           2.0  1.0  1.0  0.5
Retrieval Action Penalty  1.5  0.8  0.8  0.4
Subquery Overlap Penalty  0.1  0.5  0.5  1.2
Backtrack Penalty         0.3  0.5  0.5  1.0
Refusal Reward            0.5  0.5  0.5  0.5
Step Penalty              0.02 0.05 0.05 0.10
Answer Correctness        0.05 0.10 0.10 1.00
"""
"""Table 1: start and mid of Discovery, mid and end of Refinement."""

START, MID, MID_AGAIN, END = zip(
    *([float(cell) for cell in line.split()[-4:]] for line in PAPER.strip().splitlines()),
    strict=True,
)


def column(p: float, **settings: Any) -> list[float]:
    found = weights(EvoRagSettings(**settings), p)
    assert list(found) == list(REWARDS)
    return list(found.values())


def test_weights_move_linearly_from_the_early_to_the_late_column() -> None:
    assert MID == MID_AGAIN
    for stage, early, late in (("discovery", START, MID), ("refinement", MID, END)):
        assert column(0.0, stage=stage) == pytest.approx(early)
        assert column(1.0, stage=stage) == pytest.approx(late)
        # (1 − 0.25) · early + 0.25 · late
        quarter = [0.75 * a + 0.25 * b for a, b in zip(early, late, strict=True)]
        assert column(0.25, stage=stage) == pytest.approx(quarter)
    # β: 0.75 · 2 + 0.25 · 1; κ: 0.75 · 0.1 + 0.25 · 1.
    assert column(0.25, stage="discovery")[0] == pytest.approx(1.75)
    assert column(0.25, stage="refinement")[6] == pytest.approx(0.325)


@pytest.mark.parametrize(
    ("schedule", "discovery", "refinement"),
    [
        ("two-stage", START, END),
        ("static", MID, MID),
        ("answer-only", [0, 0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0, 1]),
        ("none", [0] * 7, [0] * 7),
    ],
)
@given(p=st.floats(0, 1))
def test_weights_of_other_schedules_are_constant_within_an_episode(
    schedule: str, discovery: list[float], refinement: list[float], p: float
) -> None:
    assert column(p, schedule=schedule, stage="discovery") == pytest.approx(discovery)
    assert column(p, schedule=schedule, stage="refinement") == pytest.approx(refinement)


def test_the_action_weight_can_rise_as_in_the_text_of_the_paper() -> None:
    """λ, the second weight, rises from 0.4 to 1.2 over both stages; the others are unchanged."""
    for stage, early, late in (("discovery", 0.4, 0.8), ("refinement", 0.8, 1.2)):
        for p, expected in ((0.0, early), (0.5, (early + late) / 2), (1.0, late)):
            risen = column(p, stage=stage, action_weight="rises")
            assert risen[1] == pytest.approx(expected)
            table = column(p, stage=stage)
            assert [*risen[:1], *risen[2:]] == [*table[:1], *table[2:]]


@given(p=st.floats(0, 1), chosen=st.sets(st.sampled_from(REWARDS), min_size=1))
def test_rewards_outside_the_components_weigh_0_and_the_others_are_unchanged(
    p: float, chosen: set[str]
) -> None:
    every = weights(EvoRagSettings(), p)
    some = weights(EvoRagSettings.model_validate({"components": [*chosen]}), p)
    assert some == {name: every[name] if name in chosen else 0.0 for name in REWARDS}


def test_weights_past_the_end_of_an_episode_stay_at_the_late_column() -> None:
    assert column(1.7, stage="refinement") == pytest.approx(END)
