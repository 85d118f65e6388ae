"""Supervised examples from a run's rows."""

from sample_records import a_node, a_pair

from agent.state import State
from storage.records import Message
from training.sft_examples import chosen_steps, right_trajectories


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
