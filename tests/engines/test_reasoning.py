"""Reasoning is separated from the reply by one rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchwise.engines.reasoning import split_reasoning

ANSWER = "<answer>Paris</answer>"


@pytest.mark.parametrize(
    ("content", "reply", "reasoning"),
    [
        (ANSWER, ANSWER, ""),
        (f"<think>Or <query>x</query>.</think>\n\n{ANSWER}", ANSWER, "Or <query>x</query>."),
        (f"The template opened it.</think>\n{ANSWER}", ANSWER, "The template opened it."),
        ("<think>The limit cut", "", "The limit cut"),
        (f"<think>\n\n</think>\n\n{ANSWER}", ANSWER, ""),
        (f"<THINKING>a</THINKING> {ANSWER}", ANSWER, "a"),
        (f"<think>a</think>{ANSWER}<think>b", ANSWER, "a\n\nb"),
        (f"<think>a<think>b</think>{ANSWER}", ANSWER, "a\n\nb"),
        (f"<think>a</think>b</think>{ANSWER}", ANSWER, "a\n\nb"),
        ("a < b > c </thinker>", "a < b > c </thinker>", ""),
        (f"I write <answer> tags.</think>\n{ANSWER}", ANSWER, "I write <answer> tags."),
        (f"[THINK]a[/THINK]{ANSWER}", ANSWER, "a"),
        (f"<|START_THINKING|>a<|END_THINKING|>{ANSWER}", ANSWER, "a"),
        (f"<seed:think>a</seed:think>{ANSWER}", ANSWER, "a"),
        (f"◁think▷a◁/think▷{ANSWER}", ANSWER, "a"),
        (f'<think time="3">a</think>{ANSWER}', ANSWER, "a"),
        (f'<details type="reasoning">a</details>{ANSWER}', ANSWER, "a"),
        (f"analysisI search.assistantfinal{ANSWER}", ANSWER, "I search."),
        (
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>"
            f"{ANSWER}<|return|>",
            ANSWER,
            "a",
        ),
        (f"{ANSWER}<|im_end|>\n<|im_start|>user\nMore", ANSWER, ""),
        (f"<|im_start|>assistant\n{ANSWER}<|im_end|>", ANSWER, ""),
    ],
)  # fmt: skip
def test_reasoning_is_separated_from_the_reply(content: str, reply: str, reasoning: str) -> None:
    assert split_reasoning(content) == (reply, reasoning)


@pytest.mark.parametrize(
    "content",
    [
        "<query>what does the </think> token do</query>",
        "<evidence>The essay <reasoning> is unclosed</evidence>",
        "<query>the [THINK] tag of Magistral</query>",
        "an analysis of the assistantfinal token",
    ],
)
def test_a_reply_about_such_tags_is_left_as_it_is(content: str) -> None:
    assert split_reasoning(content) == (content, "")


_PART = st.sampled_from(["<think>", "</think>", "a", "<answer>", " ", "\n"])


@given(st.lists(_PART, max_size=12).map("".join))
def test_no_text_is_lost_and_no_tag_is_left(content: str) -> None:
    reply, reasoning = split_reasoning(content)
    assert "think>" not in reply + reasoning
    letters = sorted(content.replace("<think>", "").replace("</think>", "").split())
    kept = sorted(f"{reply} {reasoning}".split())
    assert "".join(kept).count("a") == "".join(letters).count("a")


def test_a_megabyte_of_tags_is_read_at_once() -> None:
    assert split_reasoning("<think>" * 150_000 + "x")[0] == ""
