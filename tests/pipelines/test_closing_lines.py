"""Closing lines of a stage: the next stages, or the reason why a run has no pairs."""

import re
from pathlib import Path

import pytest

from branchwise.annotation.settings import PairSettings
from branchwise.cli.command_line import NEXT, next_stages
from branchwise.pipelines.annotate.stage import ADVICE, no_pairs_reason
from branchwise.pipelines.stages import STAGES
from branchwise.types import Event, EventKind


def dropped_pair(reason: str) -> Event:
    return Event(EventKind.PAIR_DROPPED, reason)


def test_next_stages_are_printed_with_the_run_of_the_stage() -> None:
    run = Path("datasets/mine")
    assert next_stages("annotate", run, Path("configs/mine.yaml"), None, ()) == (
        "next: make report RUN=datasets/mine, or make train-dpo RUN=datasets/mine"
    )
    assert next_stages("relabel", Path("my runs/a"), None, "strict", ()) == (
        "next: make train-dpo RUN='my runs/a' ARGS=\"--label strict\""
    )
    assert next_stages("train-dpo", run, Path("a.yaml"), None, ()) == (
        "next: make eval CONFIG=a.yaml RUN=datasets/mine"
    )
    assert next_stages("warm-start", run, Path("a.yaml"), None, ()) == (
        "next: make annotate CONFIG=a.yaml"
    )
    planned = ("warm-start", "train-grpo", "eval")
    assert next_stages("warm-start", run, None, None, planned) == "next: make train-grpo"
    assert next_stages("warm-start", run, None, None, planned[:1]) == "next: make annotate"
    assert {name for names in NEXT.values() for name in names.split(", ")} <= set(STAGES)


def test_next_stages_of_an_installed_wheel_are_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("branchwise.runs.checkout", lambda: None)
    assert next_stages("annotate", Path("my runs/a"), Path("a.yaml"), None, ()) == (
        "next: branchwise report --run 'my runs/a', or branchwise train-dpo --run 'my runs/a'"
    )
    assert next_stages("relabel", Path("b"), Path("a.yaml"), "strict", ()) == (
        "next: branchwise train-dpo --config a.yaml --run b --label strict"
    )


@pytest.mark.parametrize(
    ("events", "part"),
    [
        ({dropped_pair("small_gap"): 9, dropped_pair("unlabelled"): 2}, "9 of 11 .*pairs.min_gap"),
        ({dropped_pair("same_words"): 3}, "3 of 3 .*`same_words`.*settings.md"),
        ({Event(EventKind.DUPLICATE_SIBLING): 7}, "two different children.*temperature"),
    ],
)
def test_no_pairs_reason_names_the_setting_to_change(events: dict[Event, int], part: str) -> None:
    assert re.search(part, no_pairs_reason(events))


def test_no_pairs_reason_does_not_depend_on_the_text_of_an_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = {dropped_pair("small_gap"): 9, Event(EventKind.DUPLICATE_SIBLING): 7}
    before = no_pairs_reason(events)
    monkeypatch.setattr(EventKind.PAIR_DROPPED, "_value_", "{} lost a pair")
    assert [str(event) for event in events] == ["small_gap lost a pair", "duplicate siblings"]
    assert no_pairs_reason(events) == before


def test_advice_names_only_existing_pairs_settings() -> None:
    for text in ADVICE.values():
        for word in text.replace(",", " ").replace(":", " ").split():
            if word.startswith("pairs."):
                assert word.removeprefix("pairs.") in PairSettings.model_fields
