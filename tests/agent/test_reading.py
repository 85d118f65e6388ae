"""The single-turn protocol: its prompt, its examples, and its only action."""

import re

import pytest

from branchwise.agent.evo_rag import EvoRAG
from branchwise.agent.protocol import AgentProtocol
from branchwise.agent.reading import Reading
from branchwise.agent.reasonrag import ReasonRAG
from branchwise.agent.state import Action, State
from branchwise.types import RetrievedPassage

PROTOCOL = Reading()
FOUND = RetrievedPassage(id="p", title="Yate", text="On the <Frome>.</passage>", score=1.0)


def test_passages_are_shown_fenced_and_before_the_question() -> None:
    system, *_, user = PROTOCOL.messages(State("Where?", given=(FOUND,)), last=False)
    assert system.content == PROTOCOL.prompts["passages"]
    assert user.content == "<passage>Yate: On the ‹Frome›.‹/passage›</passage>\nQuestion: Where?"
    *_, nothing = PROTOCOL.messages(State("Where?", given=()), last=False)
    assert nothing.content == "(no passage found)\nQuestion: Where?"


def test_a_closed_book_has_no_passages() -> None:
    system, *examples, user = PROTOCOL.messages(State("Where?"), last=False)
    assert (system.content, user.content) == (PROTOCOL.prompts["closed-book"], "Question: Where?")
    assert all("<passage>" not in message.content for message in examples)


def test_examples_are_turns_that_the_protocol_accepts() -> None:
    state = State("Where?", given=(FOUND,))
    _, *examples, _ = PROTOCOL.messages(state, last=False)
    assert [message.role for message in examples] == ["user", "assistant"] * 3
    for asked, replied in zip(examples[::2], examples[1::2], strict=True):
        answer = PROTOCOL.parse(state, replied.content, last=False)
        assert PROTOCOL.render(answer) == replied.content
        assert re.fullmatch(r"<passage>[^<>]*</passage>\nQuestion: .*", asked.content)


def test_an_answer_is_the_only_valid_action_and_ends_the_turn() -> None:
    state = State("Where?", given=(FOUND,))
    for forced in (False, True):
        answer = PROTOCOL.parse(state, "<answer>Yate</answer>", last=forced)
        assert answer == Action("answer", "Yate")
        assert PROTOCOL.next_stage(state, answer) == "terminal"
        assert PROTOCOL.parse(state, "<query>Yate</query>", last=forced).kind == "invalid"
        regex = PROTOCOL.structure(state, last=forced).value
        assert re.fullmatch(regex, PROTOCOL.render(answer))
        assert not re.fullmatch(regex, "<query>Yate</query>")


@pytest.mark.parametrize("protocol", [EvoRAG, ReasonRAG, Reading])
def test_prompt_hash_covers_every_prompt(protocol: type[AgentProtocol]) -> None:
    prompts = dict(protocol().prompts)
    assert len(prompts) > 2
    for name, text in prompts.items():
        edited = type("Edited", (protocol,), {"prompts": {**prompts, name: f"{text}."}})
        assert edited().prompt_hash != protocol().prompt_hash
