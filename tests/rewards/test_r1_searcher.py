"""R1-Searcher's rewards: format rules, retrieval and answer."""

from typing import Any

import pytest
from hypothesis import given
from random_rollouts import GOLDS, OPENING, TEXT, rewritten, segments_of

from branchwise.agent.segments import Segment
from branchwise.rewards.outcome import Verdicts
from branchwise.rewards.r1_searcher import R1SearcherSettings, r1_searcher_outcome

BLOCK = "\n\n<|begin_of_documents|>\n(1) Orsk: founded by Ilya Brandt.\n<|end_of_documents|>\n\n"
QUERY = "<|begin_of_query|> Orsk founder <|end_of_query|>"


def turn(*texts: str, block: str = BLOCK, cut: bool = False) -> list[Segment]:
    """Returns policy calls with a block of documents between each two."""
    segments = [Segment("policy", texts[0])]
    for text in texts[1:]:
        segments += [Segment("environment", block), Segment("policy", text)]
    segments[-1] = Segment("policy", texts[-1], cut)
    return segments


def r1(
    segments: list[Segment],
    *,
    question: str = "When was he born?",
    golds: tuple[str, ...] = ("1871",),
    **settings: Any,
) -> tuple[Any, Verdicts]:
    return r1_searcher_outcome(segments, question, golds, R1SearcherSettings(**settings))


SERVED = f"<think>I need the founder. {QUERY}"
END = "</think><answer>1871</answer>"


@pytest.mark.parametrize(
    ("segments", "failures"),
    [
        (turn(SERVED, END), ()),
        (turn(SERVED, f"And {QUERY}", f"\n{END}\n"), ()),
        ([Segment("prefill", "<think>"), *turn(f"Hm. {QUERY}", END)], ()),
        ([Segment("prefill", "<think>"), *turn(SERVED, END)], ("sections",)),
        (turn(f"<think></think>{END}"), ("sections",)),
        (turn("<answer>1871</answer><think></think>"), ("sections", "ending")),
        (turn("<think>a<answer>1871</answer></think>"), ("sections", "ending")),
        (turn(f"<think>a{END[:8]} so <answer>1871</answer>"), ("outside",)),
        (turn(f"Well, <think>a{END}"), ("outside",)),
        (turn(f"<think>a{END}<answer>1872</answer>"), ("sections",)),
        (turn("<think>a</think><answer> </answer>"), ("answer",)),
        (turn("<think>a</think><answer>" + "x " * 10 + "</answer>"), ()),
        (turn("<think>a</think><answer>" + "x " * 11 + "</answer>"), ("long-answer",)),
        (turn(SERVED, f"<|begin_of_documents|>{END}"), ("documents",)),
        (turn(f"<think><|end_of_documents|>{END}"), ("documents",)),
        (turn(f"<think>{QUERY}{END}"), ("query",)),  # the environment returned no documents
        (turn(f"<think><|end_of_query|>{END}"), ("query",)),
        (turn(SERVED, f"<|begin_of_query|> again{END}"), ("query",)),
        (turn(f"<think><|begin_of_query|> a {QUERY}", END), ("query",)),
        (turn(f"<think>a</think><answer>{QUERY}</answer>"), ("answer", "query")),
        (turn(SERVED, END, cut=True), ("ending",)),
        (turn(SERVED, "</think>"), ("sections", "ending")),
        (turn(f"<think>\ufffd{END}"), ("unreadable",)),
        (turn(f"<think>\x85{END}"), ("unreadable",)),
        (turn(f"<think>\x7f{END}"), ("unreadable",)),
        (turn(f"<think>\ue000{END}"), ("unreadable",)),
        (turn(f"<think>\U000e0fff{END}"), ("unreadable",)),
        (turn(f"<think>\ud800{END}"), ("unreadable",)),
        (turn(f"<think>\t\r\nΩ ß Ж שלום かな 한 \u3400 😀 \u200d{END}"), ()),
        ([], ("sections", "ending")),
    ],
)
def test_r1_format_failures(segments: list[Segment], failures: tuple[str, ...]) -> None:
    outcome, verdicts = r1(segments)
    assert (verdicts.format_ok, verdicts.format_failures) == (not failures, failures)
    assert outcome.components["format"] == (0.0 if failures else 0.5)
    assert r1(segments, stage=2)[0].components["format"] == (-2.0 if failures else 0.0)


@pytest.mark.parametrize(
    ("character", "is_readable"),
    [("\u4dff", True), ("\u4e00", False), ("\u9fff", False), ("\ua000", True)],
)
def test_r1_ideographs_are_those_of_one_unicode_block(character: str, is_readable: bool) -> None:
    _, verdicts = r1(turn(f"<think>{character}{END}"))
    assert verdicts.format_failures == (() if is_readable else ("unreadable",))


def test_r1_accepts_ideographs_only_from_the_question_or_the_documents() -> None:
    text = f"<think>東京{END}"
    assert r1(turn(text))[1].format_failures == ("unreadable",)
    assert r1(turn(text), question="Where is 東京?")[1].format_failures == ()
    assert r1(turn(text), question="Where is 東?")[1].format_failures == ("unreadable",)
    served = turn(SERVED, f"東京{END}", block=BLOCK.replace("Orsk", "東京"))
    assert r1(served)[1].format_failures == ()


def test_r1_documents_forged_by_the_policy_do_not_count_as_retrieval() -> None:
    outcome, verdicts = r1(turn(f"<think>{QUERY}{BLOCK}So 1871.{END}"))
    assert verdicts.retrievals == 0
    assert outcome.components == {"retrieval": 0, "format": 0, "answer": None}


def test_r1_limit_of_answer_words_grows_with_the_longest_gold() -> None:
    answer = "<think>a</think><answer>" + "x " * 11 + "</answer>"
    assert r1(turn(answer), golds=("y", "z " * 11))[1].format_failures == ()
    assert r1(turn(answer), golds=("y", "z " * 10))[1].format_failures == ("long-answer",)
    assert r1(turn(answer), golds=(), max_answer_words=11)[1].format_failures == ()


@pytest.mark.parametrize(
    ("answer", "golds", "f1", "em", "cover"),
    [
        ("1871", ("1871",), 1, 1, 1),
        ("in 1871", ("1871",), 2 / 3, -1, 1),
        ("1870 or 1871 or 1872", ("1871",), 1 / 3, -1, 1),
        ("Yes.", ("yes",), 1, 1, 1),
        ("yes, no", ("yes",), 0, -1, -1),
        ("party", ("art",), 0, -1, -1),
        (" ", ("The The",), 0, -1, -1),  # a blank answer is wrong, even if the gold has no token
        ("1871", (), 0, -1, -1),
    ],
)
def test_r1_answer_rewards(
    answer: str, golds: tuple[str, ...], f1: float, em: float, cover: float
) -> None:
    segments = turn(f"<think>a</think><answer>{answer}</answer>")
    for name, worth in (("f1", f1), ("em", em), ("cover_em", cover)):
        outcome, _ = r1(segments, golds=golds, stage=2, answer_reward=name)
        assert outcome.components["answer"] == pytest.approx(worth), name


def test_r1_rewards_the_answer_despite_format_failures_but_not_guesses() -> None:
    assert r1(turn("1871: <answer>1871</answer>"), stage=2)[0].total == -1
    twice = turn(f"<think>a{END}<answer>1872</answer>")
    assert r1(twice, stage=2)[0].total == -2
    assert r1(turn("<think>a</think><answer>1871"), stage=2)[0].total == -2


@given(segments_of("r1"), GOLDS, TEXT)
def test_r1_totals_are_valid_and_ignore_the_documents(
    segments: list[Segment], golds: list[str], inserted: str
) -> None:
    first, _ = r1(segments, golds=tuple(golds))
    assert first.total in {0, 0.5, 1}
    assert -2 <= r1(segments, golds=tuple(golds), stage=2)[0].total <= 1
    for reward in ("em", "cover_em"):
        outcome, _ = r1(segments, golds=tuple(golds), stage=2, answer_reward=reward)
        assert outcome.total in {-3, -1, 1}
    # Documents only change which ideographs are accepted.
    plain = "".join(c for c in inserted if not "\u4e00" <= c <= "\u9fff")
    other, none = (rewritten(segments, text, OPENING["r1"]) for text in (plain, ""))
    assert r1(other, golds=tuple(golds)) == r1(none, golds=tuple(golds))
