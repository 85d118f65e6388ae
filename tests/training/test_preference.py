"""Preference pairs: holdout, order, and the log-probabilities of the start, computed once."""

import math
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from damage import HARMS, Harm

from branchwise.base.errors import ConfigError
from branchwise.training.packing import StepTokens
from branchwise.training.preference.dpo import reference_logps
from branchwise.training.preference.preference_tokens import PreferenceTokens, score, split_holdout
from branchwise.training.samplers import ExampleOrder


def pair(number: int, question: str = "q") -> PreferenceTokens:
    return PreferenceTokens((1, number), (2,), (3, number), question)


def test_the_holdout_keeps_whole_questions_regardless_of_the_others() -> None:
    pairs = [pair(n, f"q{n // 2}") for n in range(400)]
    trained, out = split_holdout(pairs, 0.25, seed=0)
    assert sorted([*trained, *out], key=pairs.index) == pairs
    assert not {p.question_id for p in trained} & {p.question_id for p in out}
    assert 30 <= len({p.question_id for p in out}) <= 70  # 50 of 200 expected
    fewer = split_holdout(pairs[::3], 0.25, seed=0)[1]
    assert {p.question_id for p in fewer} <= {p.question_id for p in out}, (
        "independent of the others"
    )
    assert split_holdout(pairs, 0.25, seed=1)[1] != out
    assert split_holdout(pairs, 0.0, seed=0) == (pairs, [])


def test_a_holdout_of_all_pairs_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"training\.dpo\.holdout 0\.5 keeps all 1 pairs out"):
        for number in range(50):
            split_holdout([pair(0, str(number))], 0.5, seed=0)


def test_the_score_measures_the_gain_of_chosen_over_rejected_steps() -> None:
    pairs = [pair(n) for n in range(4)]
    start = {row: -1.0 * len(row.step) for p in pairs for row in p.rows}
    gains = (2.0, 0.5, 0.0, -1.0)  # of the chosen step; the rejected one gains 0
    policy = start | {p.rows[0]: start[p.rows[0]] + g for p, g in zip(pairs, gains, strict=True)}
    found = score(pairs, policy, start, beta=0.1)
    assert (found.pairs, found.accuracy) == (4, 2.5 / 4)
    assert found.margin == pytest.approx(0.1 * sum(gains) / 4)
    losses = [math.log(1 + math.exp(-0.1 * gain)) for gain in gains]
    assert found.loss == pytest.approx(sum(losses) / 4)
    untouched = score(pairs, start, start, beta=0.1)
    assert (untouched.accuracy, untouched.loss) == (0.5, pytest.approx(math.log(2)))
    assert score(pairs, policy, start, beta=1e6).loss == pytest.approx(1e6 / 4), "no overflow"


def test_siblings_stay_together_in_an_order_that_changes_by_epoch() -> None:
    states = ["a", "b", "c", "a", "b", "a", "d", "e"]
    arguments, lengths = SimpleNamespace(seed=3), [1] * len(states)
    order = ExampleOrder(arguments, lengths, states)
    epochs = []
    for epoch in range(4):
        order.set_epoch(epoch)
        drawn = list(order)
        assert sorted(drawn) == list(range(len(order)))
        runs = [
            states[i] for n, i in enumerate(drawn) if n == 0 or states[drawn[n - 1]] != states[i]
        ]
        assert len(runs) == len(set(states)), "each state's pairs are adjacent"
        epochs.append(drawn)
    assert len({tuple(drawn) for drawn in epochs}) > 1
    resumed = ExampleOrder(arguments, lengths, states)
    resumed.set_epoch(2)
    assert list(resumed) == epochs[2]


ROWS = [StepTokens((1, 2), (3,)), StepTokens((1, 2), (4, 5)), StepTokens((9,), (3,))]


class Start:
    """Start policy that counts how often its log-probabilities are computed."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, rows: Sequence[StepTokens]) -> dict[StepTokens, float]:
        self.asked += 1
        return {row: -0.1 * sum(row.prompt) / len(row.step) for row in rows}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path))
    return tmp_path


def test_reference_logps_are_reused_only_for_the_same_rows_and_start() -> None:
    start, said = Start(), list[str]()
    first = reference_logps(ROWS, "a", start, said.append)
    again = reference_logps([*reversed(ROWS), ROWS[0]], "a", start, said.append)
    assert (start.asked, again) == (1, first)
    assert first == start(ROWS), "stored in double precision, values stay exact"
    assert ["computed" in said[0], "read from" in said[1]] == [True, True]
    reference_logps(ROWS, "b", start, said.append)
    reference_logps(ROWS[:2], "a", start, said.append)
    assert start.asked == 4


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_a_damaged_cache_file_is_recomputed(cache: Path, harm: Harm) -> None:
    start, said = Start(), list[str]()
    first = reference_logps(ROWS, "a", start, said.append)
    [entry] = (path for path in (cache / "reference").iterdir() if path.is_dir())
    for n, name in enumerate(sorted(path.name for path in entry.iterdir())):
        harm(entry / name, Random(n))
        said.clear()
        assert reference_logps(ROWS, "a", start, said.append) == first
        assert ["damaged" in said[0], "computed" in said[1]] == [True, True]
        assert reference_logps(ROWS, "a", start, said.append) == first
        assert "read from" in said[-1]


def test_a_cache_entry_of_other_rows_is_recomputed(cache: Path) -> None:
    start, said = Start(), list[str]()
    first = reference_logps(ROWS, "a", start, said.append)
    [entry] = (path for path in (cache / "reference").iterdir() if path.is_dir())
    entry.rename(cache / "first")
    reference_logps([StepTokens((1,), (n,)) for n in range(3)], "a", start, said.append)
    [other] = (path for path in (cache / "reference").iterdir() if path.is_dir())
    other.rename(entry)
    assert reference_logps(ROWS, "a", start, said.append) == first
    assert "damaged" in said[-2]
