"""Token counts: those of the endpoint if usable, otherwise ours, which are never too low."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from fake_endpoint import FakeEndpoint, completion
from hypothesis import given
from hypothesis import strategies as st

from branchwise.engines.endpoint.openai import OpenAIEngine
from branchwise.engines.endpoint.usage import TokenCounter, usage_of
from branchwise.engines.sampling import (
    CallIdentity,
    FinishReason,
    SampleRequest,
    Sampling,
    Structure,
    Usage,
)
from branchwise.engines.settings import ModelSettings
from branchwise.types import Message
from branchwise.weights.chat_template import prompt_ids, target_ids
from branchwise.weights.policies import packaged_gguf, tokenizer_of

REQUEST = SampleRequest(
    (Message("system", "Answer."), Message("user", "Capital of France?")),
    Sampling(max_new_tokens=17),
    CallIdentity("policy", "q1", "tree/0"),
)
NO_COUNTS: list[Any] = [
    None,
    -1,
    0,
    True,
    False,
    "12",
    12.5,
    float("nan"),
    float("inf"),
    10**30,
    [],
    {},
]


class FixedCounter(TokenCounter):
    """A counter with fixed counts."""

    def prompt(self, request: SampleRequest) -> int:
        return 1000

    def reply(self, request: SampleRequest, text: str, finish: FinishReason) -> int:
        return 200


def read(usage: Any, text: str = "Paris") -> Usage:
    return usage_of(usage, REQUEST, text, "stop", FixedCounter(tokenizer="any"))


@pytest.mark.parametrize("odd", NO_COUNTS)
def test_each_unusable_count_is_replaced_on_its_own(odd: Any) -> None:
    cached = {"prompt_tokens_details": {"cached_tokens": 4}}
    assert read({"prompt_tokens": odd, "completion_tokens": 5, **cached}) == Usage(
        1000, 0, 5, "tokenizer"
    ), "without a usable prompt count, no input counts as cached"
    assert read({"prompt_tokens": 12, "completion_tokens": odd, **cached}) == Usage(
        12, 4, 200, "tokenizer"
    )
    assert read({"prompt_tokens": odd, "completion_tokens": odd}) == Usage(
        1000, 0, 200, "tokenizer"
    )


@pytest.mark.parametrize("usage", [None, {}, [], "many", 3, {"prompt_tokens_details": 7}])
def test_missing_usage_is_replaced_by_our_count(usage: Any) -> None:
    assert read(usage) == Usage(1000, 0, 200, "tokenizer")


@pytest.mark.parametrize("cached", [*NO_COUNTS, 13])
def test_an_unusable_cached_count_is_zero(cached: Any) -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 5.0}
    reported = {**usage, "prompt_tokens_details": {"cached_tokens": cached}}
    assert read(reported) == read(usage) == Usage(12, 0, 5)


@pytest.mark.parametrize(
    ("total", "output"), [(399, 387), (13, 1), (12, 1), (None, 1), (-1, 1), (10**30, 1), ("9", 1)]
)
def test_reasoning_that_only_the_total_includes_is_counted(total: Any, output: int) -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 1, "total_tokens": total}
    assert read(usage) == Usage(12, 0, output)


def test_an_empty_reply_may_have_zero_output_tokens() -> None:
    assert read({"prompt_tokens": 12, "completion_tokens": 0}, text="") == Usage(12, 0, 0)


def test_a_sum_has_the_roughest_basis_of_its_parts() -> None:
    assert (Usage(1) + Usage(2, basis="tokenizer")).basis == "tokenizer"
    assert (Usage(1, basis="bytes") + Usage(2, basis="tokenizer")).basis == "bytes"
    assert (Usage(1) + Usage(2)).basis == "reported"


def test_an_upper_estimate_covers_schema_and_hidden_reasoning() -> None:
    count = TokenCounter()
    plain = count.prompt(REQUEST)
    schema = Structure("json_schema", '{"type": "object"}')
    assert count.prompt(replace(REQUEST, structure=schema)) >= plain + len(schema.value)
    assert count.reply(REQUEST, "", "stop") == REQUEST.sampling.max_new_tokens
    assert count.reply(REQUEST, "é" * 50, "stop") == 101


async def test_an_engine_logs_the_basis_of_its_counts_once() -> None:
    lines: list[str] = []
    async with FakeEndpoint(lambda _: completion("Paris", usage=None)) as server:
        settings = ModelSettings(
            engine="openai", model="policy", base_url=server.base_url, api_key_env="TEST_KEY"
        )
        async with OpenAIEngine(settings, on_event=lines.append) as policy:
            draws = await asyncio.gather(*(policy.sample(REQUEST) for _ in range(5)))
    upper = TokenCounter()
    expected = Usage(upper.prompt(REQUEST), 0, upper.reply(REQUEST, "Paris", "stop"), "bytes")
    assert [draw.usage for draw in draws] == [expected] * 5
    (line,) = lines
    assert server.base_url in line
    assert "from bytes" in line or "from the bytes" in line


def tokenizer() -> Any:
    return tokenizer_of(packaged_gguf())


TEXTS = st.text(max_size=200) | st.text("<|im_start>{}\"'\\ \n\t\0aé漢😀", max_size=200)


@pytest.mark.model
@given(system=st.none() | TEXTS, user=TEXTS, reply=TEXTS)
def test_token_counts_do_not_exceed_the_upper_estimate(
    system: str | None, user: str, reply: str
) -> None:
    turns = [Message("system", system)] if system is not None else []
    turns.append(Message("user", user))
    request = replace(REQUEST, messages=tuple(turns), sampling=Sampling(max_new_tokens=1))
    upper, ours = TokenCounter(), TokenCounter(None, tokenizer())
    real = len(prompt_ids(turns, tokenizer()))
    assert ours.prompt(request) == real <= upper.prompt(request)
    said = len(target_ids(reply, tokenizer()))
    assert said <= upper.reply(request, reply, "stop")
    if reply:
        assert ours.reply(request, reply, "stop") == said
        assert ours.reply(request, reply, "unknown") == said


@pytest.mark.model
async def test_the_tokenizer_of_the_weights_counts_if_it_is_known() -> None:
    lines: list[str] = []
    async with FakeEndpoint(lambda _: completion("Paris", usage=None)) as server:
        settings = ModelSettings(
            engine="openai", model="policy", base_url=server.base_url, weights="packaged"
        )
        async with OpenAIEngine(settings, on_event=lines.append) as policy:
            said = await policy.sample(REQUEST)
    prompt = len(prompt_ids(REQUEST.messages, tokenizer()))
    assert said.usage == Usage(prompt, 0, len(target_ids("Paris", tokenizer())), "tokenizer")
    assert "tokenizer of packaged" in lines[0]


@pytest.mark.model
def test_if_the_chat_template_fails_the_texts_are_counted() -> None:
    class Refusing:
        chat_template = "{{ raise_exception('no system turn') }}"

        def __call__(self, text: str, **how: Any) -> dict[str, list[int]]:
            found: dict[str, list[int]] = tokenizer()(text, **how)
            return found

    real = len(prompt_ids(REQUEST.messages, tokenizer()))
    assert TokenCounter(None, Refusing()).prompt(REQUEST) >= real


@pytest.mark.parametrize("weights", ["no/such/folder", "hub:owner/never-seen", "hub:??"])
async def test_missing_weights_are_not_downloaded_for_counting(weights: str) -> None:
    async with FakeEndpoint(lambda _: completion("Paris", usage=None)) as server:
        settings = ModelSettings(
            engine="openai", model="policy", base_url=server.base_url, weights=weights
        )
        async with OpenAIEngine(settings) as policy:
            said = await policy.sample(REQUEST)
    assert said.usage.basis == "bytes"
