"""The start's log-probabilities are computed once, and read back only as they were written."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from damage import HARMS, Harm

from training.packing import StepTokens
from training.preference.reference import reference_logps

ROWS = [StepTokens((1, 2), (3,)), StepTokens((1, 2), (4, 5)), StepTokens((9,), (3,))]


class Start:
    """Counts what it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, rows: Sequence[StepTokens]) -> dict[StepTokens, float]:
        self.asked += 1
        return {row: -0.1 * sum(row.prompt) / len(row.step) for row in rows}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path))
    return tmp_path


def test_they_are_computed_once_for_all_orders_and_never_for_another_start() -> None:
    start, said = Start(), list[str]()
    first = reference_logps(ROWS, "a", start, said.append)
    again = reference_logps([*reversed(ROWS), ROWS[0]], "a", start, said.append)
    assert (start.asked, again) == (1, first)
    assert first == start(ROWS), "in double precision, nothing is lost on the way"
    assert ["computed" in said[0], "read from" in said[1]] == [True, True]
    reference_logps(ROWS, "b", start, said.append)
    reference_logps(ROWS[:2], "a", start, said.append)
    assert start.asked == 4


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_a_damaged_file_is_not_trusted(cache: Path, harm: Harm) -> None:
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


def test_what_is_anothers_is_not_trusted(cache: Path) -> None:
    start, said = Start(), list[str]()
    first = reference_logps(ROWS, "a", start, said.append)
    [entry] = (path for path in (cache / "reference").iterdir() if path.is_dir())
    entry.rename(cache / "first")
    reference_logps([StepTokens((1,), (n,)) for n in range(3)], "a", start, said.append)
    [other] = (path for path in (cache / "reference").iterdir() if path.is_dir())
    other.rename(entry)
    assert reference_logps(ROWS, "a", start, said.append) == first
    assert "damaged" in said[-2]
