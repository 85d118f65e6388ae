"""The refusal verifier: its prompt, and the replies that count as a verdict."""

from typing import Any

import pytest
from evo_world import Grove, step
from sample_records import a_question
from scripted_engine import ScriptedEngine

from branchwise.agent.state import State
from branchwise.engines.sampling import Capabilities, FinishReason, Usage
from branchwise.engines.settings import JudgeSettings
from branchwise.rewards.verifier import judge_evidence, verifier_prompt_hash

QUESTION = a_question(
    answers=("CANARY",), supporting_ids=("CANARY",), supporting_titles=("CANARY",), type="CANARY"
)


def oracle(reply: str = "no", finish: FinishReason = "stop", **more: Any) -> ScriptedEngine:
    """Engine that always gives the same reply."""
    return ScriptedEngine(lambda _: reply, finish, usage=Usage(50, 0, 2), **more)


def refused() -> State:
    """State: two searches, a BACKTRACK, a search without new passages, and a refusal."""
    grove = Grove(QUESTION.question)
    grove.chain(
        0,
        [
            step("search", "Lyon", "lyon", "rhone"),
            step("search", "Osaka", "osaka"),
            step("backtrack", note="Lyon is in France"),
            step("search", "Lyon again", "lyon"),
            step("refuse"),
        ],
    )
    return grove.states[-1]


async def call_verifier(engine: ScriptedEngine) -> bool | None:
    settings = JudgeSettings(temperature=0.0, max_new_tokens=5)
    return await judge_evidence(engine, settings, QUESTION, refused(), "0/1", seed=3)


async def test_the_prompt_contains_only_the_question_and_passages_in_context() -> None:
    engine = oracle()
    assert await call_verifier(engine) is False
    request = engine.asked[0]
    system, user = (message.content for message in request.messages)
    assert user.splitlines() == [
        "<passage>lyon: about lyon</passage>",
        "<passage>rhone: about rhone</passage>",
        f"Question: {QUESTION.question}",
        "Do the passages suffice?",
    ]
    assert "CANARY" not in system + user
    name = request.identity
    assert (name.role, name.path, name.seed) == ("verifier", "verifier/0/1", 3)
    assert (name.question_id, name.prompt_hash) == (QUESTION.id, verifier_prompt_hash())


async def test_the_prompt_states_that_no_passage_is_in_context() -> None:
    engine = oracle()
    await judge_evidence(engine, JudgeSettings(), QUESTION, State("?"), "0", seed=0)
    assert engine.asked[0].messages[-1].content.splitlines()[0] == "(no passage)"


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        ("yes", True), ("no", False), ("Yes.", True), (" NO\n", False),
        ("", None), ("maybe", None), ("yes and no", None), ("yes\nno", None), ("nothing", None),
        ("0.5", None),
        ("Yes or no? No", None), ("no, it does not", False), ("Yes\n\nThey do.", True),
        ("Answer: Yes.", True), ("1. No", False), ('{"verdict": "yes"}', True), ("是", True),
        ("\\boxed{yes}", True), ("<answer>no</answer>", False), ("yes<|im_end|>", True),
        ("Ｙｅｓ", True), ("False", False), ("$\\text{yes}$", True), ("✅ Yes", True),
    ],
)  # fmt: skip
async def test_a_reply_that_begins_with_yes_or_no_is_a_verdict(
    reply: str, word: bool | None
) -> None:
    assert await call_verifier(oracle(reply)) is word


async def test_a_truncated_reply_gives_no_verdict() -> None:
    assert await call_verifier(oracle("yes", finish="length")) is None


async def test_structured_output_is_requested_if_the_engine_supports_it() -> None:
    for can in (True, False):
        engine = oracle(capabilities=Capabilities(structured_output=can))
        await call_verifier(engine)
        structure = engine.asked[0].structure
        assert (structure.value if structure else None) == ("yes|no" if can else None)
