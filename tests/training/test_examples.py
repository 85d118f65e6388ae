"""Token ids of examples, against the chat template of the packaged model."""

from typing import Any

import pytest

from agent.reasonrag import ReasonRAG
from agent.state import State
from storage.records import Message
from training.examples import IGNORED, StepExample, tokenise
from weights.policy_files import load_tokenizer, packaged_gguf


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(packaged_gguf())


@pytest.mark.parametrize("target", ["<query>Île-de-France</query>", "<answer>3.5 million</answer>"])
def test_prompt_and_target_are_the_templates_conversation(tokenizer: Any, target: str) -> None:
    messages = ReasonRAG().messages(State("Where is Ōsaka?"), last=False)
    [tokens] = tokenise([StepExample(messages, target, "q", "reasoning")], tokenizer)
    turns = [{"role": m.role, "content": m.content} for m in messages]
    whole = tokenizer.apply_chat_template(
        [*turns, {"role": "assistant", "content": target}], return_dict=False
    )
    asked = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    assert list(tokens.prompt) == asked
    # The template adds a line break behind the end of the turn, which no policy samples.
    assert [*tokens.prompt, *tokens.target] == whole[: len(tokens)]
    assert tokenizer.decode(whole[len(tokens) :]) == "\n"
    assert tokens.target[-1] == tokenizer.eos_token_id


def test_only_the_policys_own_tokens_carry_a_loss(tokenizer: Any) -> None:
    messages = (Message("system", "Answer."), Message("user", "<answer>not mine</answer>"))
    [tokens] = tokenise([StepExample(messages, "<answer>mine</answer>", "q", "r")], tokenizer)
    learned = [label for label in tokens.labels if label != IGNORED]
    assert tokenizer.decode(learned) == "<answer>mine</answer><|im_end|>"
    assert len(tokens.labels) == len(tokens)
