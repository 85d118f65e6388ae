"""The progress of a stage: its line."""

import io

import pytest

from branchwise.runs.progress import Progress
from branchwise.runs.terminal import Terminal
from branchwise.storage.ledger_rows import Totals


@pytest.fixture
def console() -> Terminal:
    return Terminal(io.StringIO())


def printed_lines(console: Terminal) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


async def test_the_plain_line_shows_rate_and_calls_of_this_attempt(
    console: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 1020.0)
    spent = Totals(900, 1_000_000, 5_000, 20_000)  # by earlier attempts
    shown = Progress(
        "annotate", 40, grows=True, spent=lambda: spent, started=1000.0, done=30, resumed_from=30
    )
    async with shown.shown(console):
        spent += Totals(2, 2_400, 400, 60)
        shown.done, shown.in_flight, shown.failed, shown.pairs = 32, 3, 1, 5
        shown.reward_sum, shown.rewarded = 1.25, 2
    # 2 questions in 20 s leave 80 s for the other 8.
    assert printed_lines(console) == [
        "annotate: 80% · questions 32/40 · in flight 3 · failed 1 · calls/s 0.1 · "
        "tokens in/cached/out 2,400/400/60 · pairs 5 · mean reward 0.625 · time left 1:20"
    ]


def test_trees_in_flight_count_towards_share_and_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 1060.0)
    shown = Progress("annotate", 4, started=1000.0)
    assert shown.facts()["time left"] == "–"
    shown.partial = {"q1": 0.5, "q2": 0.25}
    # 0.75 questions in 60 s leave 260 s for the other 3.25.
    assert shown.lines().startswith("annotate: 19% · questions 0/4 · ")
    assert shown.facts()["time left"] == "4:20"


def test_the_cost_is_shown_only_if_this_attempt_has_paid_calls() -> None:
    spent = Totals(900, 1_000_000, 5_000, 20_000, cost_usd=3.0)
    shown = Progress("annotate", 40, spent=lambda: spent)
    assert "USD" not in shown.facts(), "an earlier attempt paid for these calls"
    spent += Totals(2, 2_400, 400, 60, cost_usd=0.0125)
    assert shown.facts()["USD"] == "0.0125"
