"""Token ids of examples, against the chat template of the packaged model."""

from dataclasses import asdict, replace
from typing import Any

import pytest
from agent_protocols import agent_settings
from sample_records import a_node, a_pair

from branchwise.agent.reasonrag import ReasonRAG
from branchwise.agent.search_loop import SearchR1
from branchwise.agent.state import Action, State, Step
from branchwise.training.examples import StepExample, chosen_steps, right_trajectories, tokenise
from branchwise.training.packing import IGNORED
from branchwise.training.preference.preference_tokens import tokenise_pairs
from branchwise.training.sft_trainer import step_batch
from branchwise.types import Message, RetrievedPassage
from branchwise.weights.policies import packaged_gguf, tokenizer_of

SIDES = ("chosen", "rejected")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tokenizer_of(packaged_gguf())


@pytest.mark.parametrize("target", ["<query>Île-de-France</query>", "<answer>3.5 million</answer>"])
def test_prompt_and_target_ids_equal_the_chat_templates(tokenizer: Any, target: str) -> None:
    messages = ReasonRAG().messages(State("Where is Ōsaka?"), last=False)
    [tokens] = tokenise([StepExample(messages, target, "q", "reasoning")], tokenizer)
    turns = [{"role": m.role, "content": m.content} for m in messages]
    whole = tokenizer.apply_chat_template(
        [*turns, {"role": "assistant", "content": target}], return_dict=False
    )
    asked = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    assert list(tokens.prompt) == asked
    # The template adds a line break after the end of the turn, which no policy samples.
    assert list(tokens.whole) == whole[: len(tokens.whole)]
    assert tokenizer.decode(whole[len(tokens.whole) :]) == "\n"
    assert tokens.step[-1] == tokenizer.eos_token_id


def test_only_the_policys_own_tokens_carry_a_loss(tokenizer: Any) -> None:
    messages = (Message("system", "Answer."), Message("user", "<answer>not mine</answer>"))
    [tokens] = tokenise([StepExample(messages, "<answer>mine</answer>", "q", "r")], tokenizer)
    labels = step_batch(0, False, [tokens])["labels"][0]
    assert len(labels) == len(tokens.whole)
    learned = labels[labels != IGNORED].tolist()
    assert tokenizer.decode(learned) == "<answer>mine</answer><|im_end|>"


def test_a_continued_turn_is_encoded_by_part_and_only_its_end_is_learned(tokenizer: Any) -> None:
    """Encoded together, "</information>", "\\n\\n" and "<think>" get other tokens than apart."""
    protocol = SearchR1(agent_settings("search-r1", prefill="<think>"))
    texts = ("a</think><search>b</search>", "\n\nc", "d</think><answer>e</answer>")
    found = RetrievedPassage(id="p", title="T", text="t", score=1.0)
    root = State("Q?")
    step = Step(root.stage, texts[0], Action("search", "b"), passages=(found,))
    step = replace(step, inserted=protocol.inserted(root, step))
    state = root.after(step, root.stage)
    state = state.after(Step(root.stage, texts[1], Action.invalid(""), inserted="\n"), root.stage)
    example = StepExample(protocol.prompt(state), texts[2], "q", state.stage)
    [tokens] = tokenise([example], tokenizer, protocol.stops)
    first = tokenizer.apply_chat_template(
        [asdict(m) for m in protocol.messages(state, last=False)],
        add_generation_prompt=True,
        tokenize=False,
    )
    parts = (first + "<think>", texts[0], step.inserted, texts[1], "\n")
    assert tokens.prompt == tuple(
        i for part in parts for i in tokenizer(part, add_special_tokens=False)["input_ids"]
    )
    assert tokens.prompt != tuple(
        tokenizer("".join(parts), add_special_tokens=False)["input_ids"]
    ), "this text must have other tokens when it is encoded as a whole"
    assert tokenizer.decode(tokens.step) == texts[2], "the engine stops within the turn"
    [by_itself] = tokenise([replace(example, target=texts[1])], tokenizer, protocol.stops)
    assert by_itself.step[-1] == tokenizer.eos_token_id
    sides = {side: (Message("assistant", text),) for side, text in zip(SIDES, texts, strict=False)}
    pair = a_pair(prompt=example.messages, **sides)
    [compared] = tokenise_pairs([pair], tokenizer, protocol.stops)
    assert compared.prompt == tokens.prompt
    ends = [ids[-1] == tokenizer.eos_token_id for ids in (compared.chosen, compared.rejected)]
    assert ends == [False, True]


def test_each_chosen_step_is_learned_once() -> None:
    examples = chosen_steps([a_pair(pair_id="a"), a_pair(pair_id="b", rejected_node=3)])
    assert [e.target for e in examples] == ["<query>France</query>"]
    assert examples[0].messages[1].content == "Question: Capital of France?"


def test_right_trajectories_hold_only_the_steps_to_right_answers() -> None:
    nodes = [
        a_node(node_id=0, parent_id=-1, action="root", text=""),
        a_node(node_id=1, parent_id=0, text="<query>right</query>"),
        a_node(node_id=2, parent_id=0, text="<query>wrong</query>"),
        a_node(node_id=3, parent_id=1, action="answer", text="<answer>a</answer>", f1=1.0),
        a_node(node_id=4, parent_id=1, action="answer", text="<answer>b</answer>", f1=0.5),
        a_node(
            node_id=5, parent_id=2, action="answer", text="<answer>a</answer> and", f1=1.0, cut=True
        ),
        a_node(node_id=6, parent_id=1, action="invalid", text="a correction follows"),
        a_node(node_id=7, parent_id=6, action="answer", text="<answer>A</answer>", f1=1.0),
    ]
    states = [State(f"state {n}") for n in range(8)]
    examples = right_trajectories(nodes, states, lambda s: (Message("user", s.question),))
    assert [(e.messages[0].content, e.target) for e in examples] == [
        ("state 0", "<query>right</query>"),
        ("state 1", "<answer>a</answer>"),
        ("state 6", "<answer>A</answer>"),
    ]
