"""Token counts: an endpoint's where they can be used, and else ours, never below what it took."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from fake_endpoint import FakeEndpoint, completion
from hypothesis import given
from hypothesis import strategies as st

from engines.endpoint.openai import OpenAIEngine
from engines.endpoint.usage import TokenizerCount, UpperEstimate, usage_of
from engines.sampling import (
    CallIdentity,
    FinishReason,
    SampleRequest,
    Sampling,
    Structure,
    Usage,
    UsageBasis,
)
from engines.settings import ModelSettings
from storage.records import Message
from weights.chat_template import prompt_ids, target_ids
from weights.policy_files import load_tokenizer, packaged_gguf

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


class Counted:
    """A counter whose counts are known."""

    basis: UsageBasis = "tokenizer"

    def prompt(self, request: SampleRequest) -> int:
        return 1000

    def reply(self, request: SampleRequest, text: str, finish: FinishReason) -> int:
        return 200


def read(usage: Any, text: str = "Paris") -> Usage:
    return usage_of(usage, REQUEST, text, "stop", Counted())


@pytest.mark.parametrize("odd", NO_COUNTS)
def test_each_count_is_judged_by_itself(odd: Any) -> None:
    cached = {"prompt_tokens_details": {"cached_tokens": 4}}
    assert read({"prompt_tokens": odd, "completion_tokens": 5, **cached}) == Usage(
        1000, 0, 5, "tokenizer"
    ), "what is cached of a prompt that nobody counted is not known: it costs as any input"
    assert read({"prompt_tokens": 12, "completion_tokens": odd, **cached}) == Usage(
        12, 4, 200, "tokenizer"
    )
    assert read({"prompt_tokens": odd, "completion_tokens": odd}) == Usage(
        1000, 0, 200, "tokenizer"
    )


@pytest.mark.parametrize("usage", [None, {}, [], "many", 3, {"prompt_tokens_details": 7}])
def test_no_usage_at_all_is_counted(usage: Any) -> None:
    assert read(usage) == Usage(1000, 0, 200, "tokenizer")


@pytest.mark.parametrize("cached", [*NO_COUNTS, 13])
def test_what_is_not_known_to_be_cached_is_paid_in_full(cached: Any) -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 5.0}
    told = {**usage, "prompt_tokens_details": {"cached_tokens": cached}}
    assert read(told) == read(usage) == Usage(12, 0, 5)


@pytest.mark.parametrize(
    ("total", "output"), [(399, 387), (13, 1), (12, 1), (None, 1), (-1, 1), (10**30, 1), ("9", 1)]
)
def test_reasoning_that_only_the_total_includes_is_counted(total: Any, output: int) -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 1, "total_tokens": total}
    assert read(usage) == Usage(12, 0, output)


def test_nothing_said_may_have_taken_nothing() -> None:
    assert read({"prompt_tokens": 12, "completion_tokens": 0}, text="") == Usage(12, 0, 0)


def test_a_sum_rests_on_its_roughest_count() -> None:
    assert (Usage(1) + Usage(2, basis="tokenizer")).basis == "tokenizer"
    assert (Usage(1, basis="bytes") + Usage(2, basis="tokenizer")).basis == "bytes"
    assert (Usage(1) + Usage(2)).basis == "reported"


def test_an_upper_estimate_covers_schema_and_what_is_not_shown() -> None:
    count = UpperEstimate()
    plain = count.prompt(REQUEST)
    schema = Structure("json_schema", '{"type": "object"}')
    assert count.prompt(replace(REQUEST, structure=schema)) >= plain + len(schema.value)
    assert count.reply(REQUEST, "", "stop") == REQUEST.sampling.max_new_tokens
    assert count.reply(REQUEST, "é" * 50, "stop") == 101


async def test_an_engine_says_once_what_its_counts_rest_on() -> None:
    told: list[str] = []
    async with FakeEndpoint(lambda _: completion("Paris", usage=None)) as server:
        settings = ModelSettings(
            engine="openai", model="policy", base_url=server.base_url, api_key_env="TEST_KEY"
        )
        async with OpenAIEngine(settings, on_event=told.append) as policy:
            draws = await asyncio.gather(*(policy.sample(REQUEST) for _ in range(5)))
    upper = UpperEstimate()
    expected = Usage(upper.prompt(REQUEST), 0, upper.reply(REQUEST, "Paris", "stop"), "bytes")
    assert [draw.usage for draw in draws] == [expected] * 5
    (line,) = told
    assert server.base_url in line
    assert "from bytes" in line or "from the bytes" in line


def tokenizer() -> Any:
    return load_tokenizer(packaged_gguf())


TEXTS = st.text(max_size=200) | st.text("<|im_start>{}\"'\\ \n\t\0aé漢😀", max_size=200)


@pytest.mark.model
@given(system=st.none() | TEXTS, user=TEXTS, reply=TEXTS)
def test_no_prompt_and_no_reply_has_more_tokens_than_the_upper_estimate(
    system: str | None, user: str, reply: str
) -> None:
    turns = [Message("system", system)] if system is not None else []
    turns.append(Message("user", user))
    request = replace(REQUEST, messages=tuple(turns), sampling=Sampling(max_new_tokens=1))
    upper, ours = UpperEstimate(), TokenizerCount(tokenizer())
    real = len(prompt_ids(turns, tokenizer()))
    assert ours.prompt(request) == real <= upper.prompt(request)
    said = len(target_ids(reply, tokenizer()))
    assert said <= upper.reply(request, reply, "stop")
    if reply:
        assert ours.reply(request, reply, "stop") == said


@pytest.mark.model
async def test_the_model_s_own_tokenizer_counts_where_it_is_known() -> None:
    told: list[str] = []
    async with FakeEndpoint(lambda _: completion("Paris", usage=None)) as server:
        settings = ModelSettings(
            engine="openai", model="policy", base_url=server.base_url, weights="packaged"
        )
        async with OpenAIEngine(settings, on_event=told.append) as policy:
            said = await policy.sample(REQUEST)
    prompt = len(prompt_ids(REQUEST.messages, tokenizer()))
    assert said.usage == Usage(prompt, 0, len(target_ids("Paris", tokenizer())), "tokenizer")
    assert "tokenizer of packaged" in told[0]


@pytest.mark.model
def test_a_template_that_refuses_the_messages_leaves_texts_to_count() -> None:
    class Refusing:
        chat_template = "{{ raise_exception('no system turn') }}"

        def __call__(self, text: str, **how: Any) -> dict[str, list[int]]:
            found: dict[str, list[int]] = tokenizer()(text, **how)
            return found

    real = len(prompt_ids(REQUEST.messages, tokenizer()))
    assert TokenizerCount(Refusing()).prompt(REQUEST) >= real


@pytest.mark.parametrize("weights", ["no/such/folder", "hub:owner/never-seen", "hub:??"])
async def test_weights_that_are_not_here_are_not_fetched(weights: str) -> None:
    async with FakeEndpoint(lambda _: completion("Paris", usage=None)) as server:
        settings = ModelSettings(
            engine="openai", model="policy", base_url=server.base_url, weights=weights
        )
        async with OpenAIEngine(settings) as policy:
            said = await policy.sample(REQUEST)
    assert said.usage.basis == "bytes"
