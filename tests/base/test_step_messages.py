"""Progress messages of long loops."""

import pytest

from branchwise.base.step_messages import StepMessages, format_duration


def test_messages_are_at_least_half_a_minute_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lines = [0.0], list[str]()
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    messages = StepMessages(lines.append, "steps", 100, before=20, started=0.0)
    for done, clock[0] in ((30, 29.0), (40, 31.0), (50, 45.0), (60, 62.0), (100, 70.0)):
        messages.report(done, ", loss 0.5")
    assert lines == [
        "40 of 100 steps (40%), time left 1:33, loss 0.5",
        "60 of 100 steps (60%), time left 1:02, loss 0.5",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (0, "0:00"), (75.9, "1:15"), (3661, "1:01:01")]
)
def test_durations_are_formatted(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text
