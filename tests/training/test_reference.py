"""The start's log-probabilities are computed once, and read back only as they were written."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from training.packing import Row
from training.reference import reference_logps

ROWS = [Row((1, 2), (3,)), Row((1, 2), (4, 5)), Row((9,), (3,))]


class Start:
    """Counts what it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, rows: Sequence[Row]) -> dict[Row, float]:
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


@pytest.mark.parametrize("harm", ["cut", "flipped", "emptied", "another's"])
def test_a_damaged_file_is_not_trusted(cache: Path, harm: str) -> None:
    start, said = Start(), list[str]()
    first = reference_logps(ROWS, "a", start, said.append)
    [path] = (cache / "reference").iterdir()
    content = path.read_bytes()
    if harm == "another's":
        other = [Row((1,), (n,)) for n in range(3)]
        reference_logps(other, "a", start, said.append)
        content = next(p for p in path.parent.iterdir() if p != path).read_bytes()
    else:
        content = {"cut": content[:-4], "flipped": content[:-1] + b"\x00", "emptied": b""}[harm]
    path.write_bytes(content)
    said.clear()
    assert reference_logps(ROWS, "a", start, said.append) == first
    assert "damaged" in said[0]
    assert "read from" in (reference_logps(ROWS, "a", start, said.append) and said[-1])
