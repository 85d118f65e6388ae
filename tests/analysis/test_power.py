"""How many questions a comparison needs."""

import numpy as np
import pytest

from analysis.power import questions_needed


@pytest.mark.parametrize(("disagreement", "questions"), [(0.1, 312), (0.2, 626), (0.3, 940)])
def test_five_points(disagreement: float, questions: int) -> None:
    assert questions_needed(disagreement, 0.05) == questions
    assert questions_needed(disagreement, -0.05) == questions


def test_that_many_questions_have_that_power() -> None:
    """McNemar's test (normal, two-sided 5 %) on simulated answers sees the effect 4 times of 5."""
    n = questions_needed(0.2, 0.05)
    rng = np.random.default_rng(0)
    won, lost, _ = rng.multinomial(n, [0.125, 0.075, 0.8], size=20_000).T
    seen = (won - lost) / np.sqrt(won + lost) > 1.96
    assert seen.mean() == pytest.approx(0.8, abs=0.015)


@pytest.mark.parametrize(("disagreement", "effect"), [(0.1, 0.2), (0.1, 0), (1.5, 0.1), (0, 0)])
def test_impossible_effects_are_refused(disagreement: float, effect: float) -> None:
    with pytest.raises(ValueError, match="disagree"):
        questions_needed(disagreement, effect)
    with pytest.raises(ValueError, match="power"):
        questions_needed(0.2, 0.05, power=1.0)
