"""Parsers of tags in a rollout: strict, in order, and in linear time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchwise.agent.segments import (
    EVAL_RAR,
    R1_SEARCHER,
    Segment,
    find_tags,
    first_pair,
    outside,
    pairs,
    policy_text,
    section,
)

PIECES = ["<answer>", "</answer>", "<think>", "</think>", "<|end_of_query|>", "<ans", "wer>", " x "]
TEXT = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)


def test_tags_are_read_in_order_with_their_positions() -> None:
    text = "a<think>b<|begin_of_query|></think><<|end_of_query|><evaluate>"
    found = [(t.name, t.closing, text[t.start : t.end]) for t in find_tags(text, R1_SEARCHER)]
    assert found == [
        ("think", False, "<think>"),
        ("query", False, "<|begin_of_query|>"),
        ("think", True, "</think>"),
        ("query", True, "<|end_of_query|>"),
    ]


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<answer>Paris</answer>", "Paris"),
        ("x<answer> <b>Paris</b>\n</answer>y", " <b>Paris</b>\n"),
        ("<answer><think>Paris</answer>", "<think>Paris"),  # another section's tags are text
        ("<answer></answer>", ""),
        ("</answer>Paris<answer>", None),
        ("<answer>Paris</answer><answer>Rome</answer>", None),
        ("<Answer>Paris</Answer>", None),
        ("<answer >Paris</answer>", None),
    ],
)
def test_a_section_is_one_opening_and_one_closing_tag(text: str, content: str | None) -> None:
    assert section(text, "answer") == content


def test_outside_returns_the_text_between_well_formed_sections() -> None:
    names = ("think", "answer")
    assert outside("a<think>1</think>b<answer>2</answer>c", names) == "abc"
    assert outside("<answer>2</answer><think>1</think>", names) is None
    assert outside("<think>1<answer>2</think></answer>", names) is None
    assert outside("<think>1</think><answer>2</answer><answer>", names) is None


def test_the_first_pair_has_no_tag_inside() -> None:
    def action(text: str) -> str | None:
        found = first_pair(text, EVAL_RAR.pairs, ("search", "answer"))
        return found and text[found[0].start : found[1].end]

    assert action("<search>a<answer>b</answer></search>") == "<answer>b</answer>"
    assert action("<search><search>a</search><answer>b</answer>") == "<search>a</search>"
    assert action("<search> </search><answer>b</answer>") == "<search> </search>"
    assert action("<evaluate>a</evaluate>") is None
    assert action("<search>a</answer>") is None


def test_no_tag_forms_across_two_calls() -> None:
    segments = [
        Segment("prefill", "<think>"),
        Segment("policy", "<ans"),
        Segment("environment", "<answer>Rome</answer>"),
        Segment("policy", "wer>Paris</answer>"),
    ]
    assert policy_text(segments) == "<ans\n\nwer>Paris</answer>"
    assert policy_text(segments, prefill=True).startswith("<think><ans")
    assert section(policy_text(segments), "answer") is None


@given(TEXT)
def test_section_agrees_with_counting_the_tags(text: str) -> None:
    opening, closing = pairs("answer")["answer"]
    before, _, content = text.partition(opening)
    content, end, after = content.partition(closing)
    single = (
        end
        and not any(closing in part for part in (before, after))
        and not any(opening in part for part in (content, after))
    )
    assert section(text, "answer") == (content if single else None)


def test_a_megabyte_of_tags_is_read_in_one_pass() -> None:
    text = "<answer>" * 125_000
    assert section(text, "answer") is None
    assert outside(text, ("think", "answer")) is None
    assert first_pair(text, EVAL_RAR.pairs, ("answer",)) is None
