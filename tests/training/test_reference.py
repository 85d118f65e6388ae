"""The reference log-probabilities: computed once, and recomputed if the cache is damaged."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from damage import HARMS, Harm

from training.packing import StepTokens
from training.preference.reference import reference_logps

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
