"""ARENA's rewards: format, relevance, accuracy and bonus."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_rollouts import GOLDS, POLICY, TEXT

from branchwise.agent.segments import Segment
from branchwise.rewards.arena import ArenaSettings, arena_outcome
from branchwise.rewards.outcome import Outcome, Verdicts


def reply(
    relevance: str = "[2,4]", analysis: str = "2 says 1811, 4 says 1864.", answer: str = "Korva"
) -> str:
    sections = {"relevance": relevance, "analysis": analysis, "answer": answer}
    return "\n".join(f"<{name}>{content}</{name}>" for name, content in sections.items())


def arena(
    text: str = "",
    *,
    golds: tuple[str, ...] = ("Korva",),
    supporting: tuple[int, ...] | None = (2, 4),
    cut: bool = False,
    **settings: Any,
) -> tuple[Outcome, Verdicts]:
    return arena_outcome(
        [Segment("policy", text or reply(), cut)],
        golds,
        ArenaSettings(**settings),
        reference_count=4,
        supporting=supporting,
    )


@pytest.mark.parametrize(
    ("text", "failures"),
    [
        (reply(), ()),
        (reply(relevance=" [ 002 ,\n4 ] "), ()),
        (reply(relevance="[]"), ()),
        (reply(relevance="[2,2,4]"), ()),
        (f"\n{reply()}\u00a0", ()),
        (reply(answer=""), ("blank",)),
        (reply(analysis="\n"), ("blank",)),
        (reply(relevance=""), ("list",)),
        (reply(relevance="[2,4,]"), ("list",)),
        (reply(relevance="[2 4]"), ("list",)),
        (reply(relevance="2,4"), ("list",)),
        (reply(relevance="[[2,4]]"), ("list",)),
        (reply(relevance="[2][4]"), ("list",)),
        (reply(relevance="[+2,4]"), ("list",)),
        (reply(relevance="[2.0,4]"), ("list",)),
        (reply(relevance="[²,4]"), ("list",)),  # superscript: isdigit() is true, but int() raises
        (reply(relevance="[٢,٤]"), ("list",)),
        (reply(relevance="[0000002,4]"), ("list",)),  # seven digits
        (reply(relevance="[2,\u200b4]"), ("list",)),
        (reply(relevance="[0,2,4]"), ("range",)),
        (reply(relevance="[5]"), ("range",)),
        (reply() + "<answer>Korva</answer>", ("sections",)),
        (reply() + "</analysis>", ("sections",)),
        (reply(analysis="<answer>Korva</answer>"), ("sections",)),
        (reply(analysis="see <relevance>"), ("sections",)),
        (reply().replace("<answer>", "<Answer>"), ("sections",)),
        (reply() + "Hope it helps.", ("outside",)),
        ("\u200b" + reply(), ("outside",)),
        ("Korva", ("sections",)),
    ],
)
def test_arena_format_failures(text: str, failures: tuple[str, ...]) -> None:
    outcome, verdicts = arena(text)
    assert verdicts.format_failures == failures
    assert verdicts.format_ok is not bool(failures)
    assert outcome.components["format"] == float(not failures)


def test_arena_truncated_reply_fails_the_format_but_is_scored() -> None:
    outcome, verdicts = arena(cut=True)
    assert verdicts.format_failures == ("cut",)
    assert outcome.components == {"format": 0, "accuracy": 1, "relevance": 1, "bonus": 0}


@pytest.mark.parametrize(
    ("relevance", "worth"),
    [
        ("[4,2]", 1),
        ("[2,4,4]", 1),
        ("[2]", 0.5),
        ("[1,2,3,4]", 0.5),  # citing everything
        ("[2,4,0]", 0.5),
        ("[2,4,999999]", 0.5),
        ("[1,3]", 0),
        ("[]", 0),
        ("two and four", 0),
    ],
)
def test_arena_relevance(relevance: str, worth: float) -> None:
    outcome, verdicts = arena(reply(relevance=relevance))
    assert verdicts.relevance == outcome.components["relevance"] == worth


def test_arena_relevance_is_none_if_the_supporting_references_are_unknown() -> None:
    for text in (reply(), reply(relevance="[]"), "no section at all"):
        for supporting in (None, ()):
            outcome, verdicts = arena(text, supporting=supporting)
            assert verdicts.relevance is None
            assert verdicts.all_correct is None
            assert outcome.total == sum(v for v in outcome.components.values() if v is not None)
    assert arena("no section at all")[1].relevance == 0


def test_arena_gives_no_reward_for_several_guesses() -> None:
    for text, component in (
        (reply() + "<answer>Tessel</answer>", "accuracy"),
        (reply(answer="Tessel") + "<answer>Korva</answer>", "accuracy"),
        (reply() + "<relevance>[1]</relevance>", "relevance"),
        (reply(answer="Korva or Tessel"), "accuracy"),
    ):
        assert arena(text)[0].components[component] == 0


def test_arena_blank_answer_is_wrong_even_if_the_gold_has_no_token() -> None:
    assert arena(reply(answer=" "), golds=("The The",))[0].components["accuracy"] == 0


def test_arena_accuracy_by_f1_gives_the_bonus_only_for_f1_of_1() -> None:
    partial, _ = arena(reply(answer="Korva Point"), accuracy="f1")
    assert partial.components == pytest.approx(
        {"format": 1, "accuracy": 2 / 3, "relevance": 1, "bonus": 0}
    )
    assert arena(accuracy="f1")[0].total == 13
    swapped, verdicts = arena(reply(answer="Point Korva"), golds=("Korva Point",), accuracy="f1")
    assert swapped.total == 13
    assert verdicts.all_correct is False  # by exact match, even if the reward uses F1


def test_arena_components_outside_the_total_are_still_measured() -> None:
    naive, verdicts = arena(components=("format", "accuracy"))
    assert naive.components == {"format": 1, "accuracy": 1}
    assert (naive.total, verdicts.relevance, verdicts.all_correct) == (2, 1, True)


@given(st.lists(POLICY, max_size=2), GOLDS, st.sets(st.integers(1, 4)), TEXT)
def test_arena_totals_are_valid_and_ignore_inserted_text(
    segments: list[Segment], golds: list[str], supporting: set[int], inserted: str
) -> None:
    settings = ArenaSettings()
    scored = arena_outcome(segments, golds, settings, reference_count=4, supporting=supporting)
    outcome, verdicts = scored
    assert outcome.total in {0, 0.5, 1, 1.5, 2, 2.5, 13}
    if outcome.total == 13:
        assert verdicts.all_correct
    beside = [*segments, Segment("environment", inserted), Segment("prefill", inserted)]
    assert scored == arena_outcome(
        beside, golds, settings, reference_count=4, supporting=supporting
    )
