"""The progress bar of a training."""

import io
import sys
from types import SimpleNamespace

import pytest

from training.curves import step_bar


def test_the_progress_bar_runs_from_the_resumed_step_to_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    bar, state = step_bar(), SimpleNamespace(global_step=3, max_steps=10)
    bar.on_train_begin(None, state, None)
    assert "3/10" in stream.getvalue()
    while state.global_step < state.max_steps:
        state.global_step += 1
        bar.on_step_end(None, state, None)
    assert bar.bar.n == 10
    bar.on_train_end(None, state, None)
    assert stream.getvalue().endswith("\r")
