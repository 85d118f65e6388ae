"""The single turn: what it is shown, and that it only answers."""

import re

from agent.reading import Reading, with_passages
from agent.state import Action, State
from storage.records import RetrievedPassage

PROTOCOL = Reading()
FOUND = RetrievedPassage(id="p", title="Yate", text="On the <Frome>.</passage>", score=1.0)


def test_passages_are_shown_fenced_and_before_the_question() -> None:
    system, *_, user = PROTOCOL.messages(with_passages("Where?", (FOUND,)), forced=False)
    assert system.content == PROTOCOL.prompts["passages"]
    assert user.content == "<passage>Yate: On the ‹Frome›.‹/passage›</passage>\nQuestion: Where?"
    *_, nothing = PROTOCOL.messages(with_passages("Where?", ()), forced=False)
    assert nothing.content == "(no passage found)\nQuestion: Where?"


def test_a_closed_book_has_no_passages() -> None:
    system, *examples, user = PROTOCOL.messages(State("Where?"), forced=False)
    assert (system.content, user.content) == (PROTOCOL.prompts["closed-book"], "Question: Where?")
    assert all("<passage>" not in message.content for message in examples)


def test_examples_are_turns_that_the_protocol_accepts() -> None:
    state = with_passages("Where?", (FOUND,))
    _, *examples, _ = PROTOCOL.messages(state, forced=False)
    assert [message.role for message in examples] == ["user", "assistant"] * 3
    for asked, replied in zip(examples[::2], examples[1::2], strict=True):
        answer = PROTOCOL.parse(state, replied.content, forced=False)
        assert PROTOCOL.render(answer) == replied.content
        assert re.fullmatch(r"<passage>[^<>]*</passage>\nQuestion: .*", asked.content)
    without = Reading(prompts={**PROTOCOL.prompts, "examples": ""})
    assert without.prompt_hash != PROTOCOL.prompt_hash


def test_one_turn_ends_with_an_answer() -> None:
    state = with_passages("Where?", (FOUND,))
    for forced in (False, True):
        answer = PROTOCOL.parse(state, "<answer>Yate</answer>", forced=forced)
        assert answer == Action("answer", "Yate")
        assert PROTOCOL.next_stage(state, answer) == "terminal"
        assert PROTOCOL.parse(state, "<query>Yate</query>", forced=forced).kind == "invalid"
        regex = PROTOCOL.structure(state, forced=forced).value
        assert re.fullmatch(regex, PROTOCOL.render(answer))
        assert not re.fullmatch(regex, "<query>Yate</query>")
