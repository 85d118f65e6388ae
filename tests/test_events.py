"""Events: their texts are contracts of `--json`, manifests and `provenance.json`."""

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from branchwise.storage.manifest import PartInfo
from branchwise.types import Event, EventKind, counts_by_text

KINDS = [kind for kind in EventKind if kind is not EventKind.OTHER]
EVENTS = st.tuples(st.sampled_from(KINDS), st.text()).map(
    lambda drawn: Event(drawn[0], drawn[1] if "{}" in drawn[0].value else "")
)


@given(event=EVENTS)
@example(event=Event(EventKind.UNSCORED, "pair dropped: {}"))
@example(event=Event(EventKind.OTHER_SPLIT, "a, left out\n"))
def test_an_event_is_read_back_from_its_text(event: Event) -> None:
    assert Event.parse(str(event)) == event


@given(text=st.text() | EVENTS.map(str))
def test_every_stored_text_stays_as_it_is(text: str) -> None:
    assert str(Event.parse(text)) == text


def test_a_text_of_another_version_is_an_event_of_no_known_kind() -> None:
    assert Event.parse("pairs lost: 3") == Event(EventKind.OTHER, "pairs lost: 3")


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Event(EventKind.PAIR_DROPPED, "small_gap"), "pair dropped: small_gap"),
        (Event(EventKind.UNSCORED, "no score"), "unscored: no score"),
        (Event(EventKind.TOKEN_LIMIT), "stopped at mcts.max_output_tokens"),
        (Event(EventKind.QUESTION_FAILED, "EndpointError"), "question failed: EndpointError"),
        (Event(EventKind.QUESTION_READ, source="jsonl"), "jsonl: questions read"),
        (
            Event(EventKind.OTHER_SPLIT, "warm", "jsonl"),
            "jsonl: questions of the split warm, left out",
        ),
        (Event(EventKind.UNFIT, "unanswerable", "hub"), "hub: questions left out, unanswerable"),
        (Event(EventKind.OVER_LIMIT, "limit", "hub"), "hub: questions left out by the limit"),
        (
            Event(EventKind.OVER_LIMIT, "limit of the mix"),
            "questions left out by the limit of the mix",
        ),
    ],
)
def test_texts_of_events_are_those_of_earlier_versions(event: Event, text: str) -> None:
    assert counts_by_text({event: 3}) == {text: 3}


def test_counts_of_several_parts_add_up_by_event() -> None:
    counts = {"pair dropped: small_gap": 2, "a new kind": 1}
    part = PartInfo(table="trees", path="trees/part-0.parquet", rows=1, sha256="", counts=counts)
    total = Counter(part.events) + Counter(part.events)
    assert total[Event(EventKind.PAIR_DROPPED, "small_gap")] == 4
    assert counts_by_text(total) == {"pair dropped: small_gap": 4, "a new kind": 2}
