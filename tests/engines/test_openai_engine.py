"""The OpenAI engine against a real server on loopback."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from endpoint_client import KEY_VARIABLE, REQUEST, draws, engine
from fake_endpoint import FakeEndpoint, completion, encoded, ids_completion

from branchwise.base.errors import ConfigError, EndpointError, TokenDrift
from branchwise.engines.sampling import Structure, Usage
from branchwise.weights.chat_template import template_values

KEY = "sk-verysecret-0123456789"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)


async def test_sample_sends_all_settings_and_parses_the_reply() -> None:
    usage = {
        "prompt_tokens": 40,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 32},
    }
    async with (
        FakeEndpoint(lambda _: completion("Paris", usage=usage), key=KEY) as server,
        engine(server.base_url) as policy,
    ):
        said = await policy.sample(REQUEST)
    assert (said.text, said.finish_reason, said.model, said.attempts) == (
        "Paris",
        "stop",
        "served",
        1,
    )
    assert said.usage == Usage(40, 32, 5)
    sent = server.requests[0]
    assert sent["messages"] == [
        {"role": "system", "content": "Answer."},
        {"role": "user", "content": "Capital of France?"},
    ]
    assert (sent["temperature"], sent["top_p"], sent["max_tokens"]) == (0.7, 0.9, 17)
    assert sent["stop"] == ["</answer>"]
    assert not [h for h in server.headers[0] if h.lower() == "x-stainless-os"]


async def test_seeds_are_stable_per_call_and_differ_per_draw() -> None:
    async with FakeEndpoint() as server, engine(server.base_url) as policy:
        for draw in (0, 1, 2, 2):
            await policy.sample(draws(3)[draw])
    seeds = [sent["seed"] for sent in server.requests]
    assert len(set(seeds[:3])) == 3
    assert seeds[3] == seeds[2]
    assert all(0 <= seed < 2**31 for seed in seeds)


THOUGHT = {"reasoning_content": "So score 1"}
PARTS = [
    {"type": "thinking", "thinking": [{"text": "hm"}]},
    *({"type": "text", "text": text} for text in ("<answer>", "Paris")),
]
"""Content of a reply as some reasoning models send it."""


@pytest.mark.parametrize(
    ("body", "text", "finish", "stop"),
    [
        (completion(None, message=THOUGHT, finish_reason="length"), "", "length", "reasoning only"),
        (completion(None, message={"refusal": "I won't"}), "", "content_filter", "refusal"),
        (completion("cut", finish_reason="length"), "cut", "length", "length"),
        (completion("x", finish_reason="tool_calls"), "x", "unknown", "tool_calls"),
        (completion("bad \ud800"), "bad \ufffd", "stop", "stop"),
        (completion("nul \0"), "nul \0", "stop", "stop"),
        (completion("x", usage=None), "x", "stop", "stop"),
        (completion(None, message={"content": PARTS}), "<answer>Paris", "stop", "stop"),
    ],
)
async def test_unusual_replies_are_parsed(
    body: dict[str, Any], text: str, finish: str, stop: str
) -> None:
    async with FakeEndpoint(lambda _: body) as server, engine(server.base_url) as policy:
        said = await policy.sample(REQUEST)
    assert (said.text, said.finish_reason, said.stop_reason) == (text, finish, stop)


@pytest.mark.parametrize(
    ("settings", "owner", "text"),
    [
        ({}, "vllm", "So score 1"),  # the request switched thinking off
        ({"server": "lm-studio"}, "unknown", "So score 1"),
        ({}, "unknown", ""),
        ({"reasoning": "reply"}, "unknown", "So score 1"),
        ({"reasoning": "drop"}, "vllm", ""),
        ({"thinking": True}, "vllm", ""),
    ],
)
async def test_reasoning_alone_is_the_reply_only_if_the_model_was_told_not_to_think(
    settings: dict[str, Any], owner: str, text: str
) -> None:
    def reply(_: dict[str, Any]) -> dict[str, Any]:
        return completion(None, message=THOUGHT)

    async with (
        FakeEndpoint(reply, owned_by=owner) as server,
        engine(server.base_url, **settings) as policy,
    ):
        said = await policy.sample(REQUEST)
    assert (said.text, said.reasoning) == (text, "" if text else "So score 1")
    assert said.stop_reason == ("stop" if text else "reasoning only")
    assert json.loads(said.raw or "")["message"]["reasoning_content"] == "So score 1"


async def test_reasoning_in_the_content_is_separated_and_stored() -> None:
    content = "<think>Or <query>x</query>.</think>\n\n<query>y</query>"
    async with FakeEndpoint(lambda _: content) as server, engine(server.base_url) as policy:
        said = await policy.sample(REQUEST)
        async with engine(server.base_url, reasoning="keep") as keeping:
            whole = await keeping.sample(REQUEST)
    assert (said.text, said.reasoning) == ("<query>y</query>", "Or <query>x</query>.")
    assert json.loads(said.raw or "")["message"]["content"] == content
    assert (whole.text, whole.reasoning, whole.raw) == (content, "", None)


async def test_vllm_is_detected_and_gets_structured_outputs() -> None:
    request = replace(REQUEST, structure=Structure("regex", "a|b"))
    async with FakeEndpoint(owned_by="vllm") as server, engine(server.base_url) as policy:
        assert policy.capabilities.structured_output
        await policy.sample(request)
    assert server.requests[0]["structured_outputs"] == {"regex": "a|b"}
    assert server.requests[0]["chat_template_kwargs"] == template_values()


@pytest.mark.parametrize(
    ("owner", "settings", "constraint"),
    [
        ("sglang", {}, {"regex": "a|b"}),
        ("x", {"server": "sglang"}, {"regex": "a|b"}),
        ("x", {"server": "tgi"}, {"response_format": {"type": "regex", "value": "a|b"}}),
        ("x", {"structured_output": "vllm"}, {"structured_outputs": {"regex": "a|b"}}),
    ],
)
async def test_a_servers_own_form_of_constraints_is_sent(
    owner: str, settings: dict[str, Any], constraint: dict[str, Any]
) -> None:
    request = replace(REQUEST, structure=Structure("regex", "a|b"))
    async with (
        FakeEndpoint(lambda _: "a", owned_by=owner) as server,
        engine(server.base_url, **settings) as policy,
    ):
        assert policy.capabilities.structured_output
        assert policy.capabilities.token_ids == ("vllm" in settings.values())
        await policy.sample(request)
    assert constraint.items() <= server.requests[0].items()
    templated = settings.get("server") != "tgi"
    assert ("chat_template_kwargs" in server.requests[0]) == templated


@pytest.mark.parametrize("form", ["none", "json_schema"])
async def test_thinking_is_switched_off_whatever_the_form_of_constraints(form: Any) -> None:
    reply = completion(None, message={"reasoning_content": "<answer>Paris</answer>"})
    async with (
        FakeEndpoint(lambda _: reply, owned_by="vllm") as server,
        engine(server.base_url, structured_output=form) as policy,
    ):
        assert (await policy.sample(REQUEST)).text == "<answer>Paris</answer>"
    assert server.requests[0]["chat_template_kwargs"]["enable_thinking"] is False


async def test_request_settings_apply_to_prompts_and_calls_in_token_ids() -> None:
    request = {
        "omit": ["seed"],
        "extra": {"repetition_penalty": 1.3, "chat_template_kwargs": {"style": "short"}},
        "merge_system": True,
    }
    prompts: list[Any] = []
    async with (
        FakeEndpoint(lambda _: "Paris") as server,
        engine(server.base_url, request=request) as policy,
    ):
        server.tokenized = prompts
        await policy.sample(replace(REQUEST, tokens=True))
    (body,) = server.requests
    assert body["repetition_penalty"] == 1.3
    assert not {"seed", "chat_template_kwargs"} & body.keys()
    assert prompts[0]["chat_template_kwargs"]["style"] == "short"
    assert [turn["role"] for turn in prompts[0]["messages"]] == ["user"]


@pytest.mark.parametrize(
    ("server", "extra", "rule"),
    [
        ("dashscope", {"enable_thinking": True}, "drop"),
        ("vllm", {"chat_template_kwargs": {"enable_thinking": True}}, "drop"),
        ("auto", {"enable_thinking": False}, "reply"),
        ("auto", {"reasoning": {"effort": "none"}}, "reply"),
        ("auto", {"reasoning_effort": "low"}, "drop"),
        ("auto", {"thinking": {"type": "disabled"}}, "reply"),
        ("auto", {}, "drop"),
    ],
)
async def test_the_rule_of_reasoning_follows_what_the_request_says(
    server: Any, extra: dict[str, Any], rule: str
) -> None:
    policy = engine("http://127.0.0.1:9/v1", server=server, request={"extra": extra})
    assert policy.reasoning_rule == rule


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "\n\n", "reasoning_content": "<answer>P</answer>"}, "<answer>P</answer>"),
        ({"content": None, "thinking": "<answer>P</answer>"}, "<answer>P</answer>"),
        ({"content": None, "reasoning": {"content": "<answer>P</answer>"}}, "<answer>P</answer>"),
        ({"content": ["P"]}, "P"),
        ({"content": {"type": "text", "text": "P"}}, "P"),
        ({"content": "<answer>P</answer><|im_end|>\n<|im_start|>user\nMore"}, "<answer>P</answer>"),
    ],
)
async def test_a_reply_is_found_wherever_the_server_put_it(
    message: dict[str, Any], text: str
) -> None:
    async with (
        FakeEndpoint(lambda _: completion(None, message=message)) as server,
        engine(server.base_url) as policy,
    ):
        assert (await policy.sample(REQUEST)).text == text


@pytest.mark.parametrize(
    ("headers_env", "authorization"),
    [
        ({"api-key": "TEST_KEY"}, None),
        ({"Authorization": "OTHER"}, "other-secret"),
        ({"cf-aig-authorization": "OTHER"}, f"Bearer {KEY}"),
    ],
)
async def test_authorization_is_sent_unless_another_header_has_the_key(
    headers_env: dict[str, str], authorization: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER", "other-secret")
    async with (
        FakeEndpoint() as server,
        engine(server.base_url, request={"headers_env": headers_env}) as policy,
    ):
        await policy.sample(REQUEST)
    assert server.headers[0].get("Authorization") == authorization


@pytest.mark.parametrize(
    ("owner", "server", "response_format"),
    [
        ("sglang", "auto", {"type": "json_schema"}),
        ("llamacpp", "auto", {"type": "json_schema"}),
        ("library", "ollama", {"type": "json_schema"}),
        ("x", "tgi", {"type": "json", "value": {"type": "object"}}),
    ],
)
async def test_a_schema_takes_the_form_of_the_server(
    owner: str, server: Any, response_format: dict[str, Any]
) -> None:
    request = replace(REQUEST, structure=Structure("json_schema", '{"type": "object"}'))
    async with (
        FakeEndpoint(lambda _: "{}", owned_by=owner) as endpoint,
        engine(endpoint.base_url, server=server) as judge,
    ):
        await judge.sample(request)
    assert response_format.items() <= endpoint.requests[0]["response_format"].items()


async def test_openai_gets_json_schemas_and_refuses_regexes_and_token_ids() -> None:
    schema = {"type": "object"}
    by_schema = replace(REQUEST, structure=Structure("json_schema", json.dumps(schema)))
    async with FakeEndpoint(owned_by="openai") as server, engine(server.base_url) as policy:
        await policy.sample(by_schema)
        assert not policy.capabilities.structured_output
        with pytest.raises(EndpointError, match="regex"):
            await policy.sample(replace(REQUEST, structure=Structure("regex", "a")))
        for ids in (replace(REQUEST, prefix=("<",)), replace(REQUEST, tokens=True)):
            with pytest.raises(EndpointError, match=r"token ids: use vLLM 0\.11") as caught:
                await policy.sample(ids)
            assert caught.value.fatal
    assert server.requests[0]["response_format"]["json_schema"]["schema"] == schema
    assert len(server.requests) == 1
    async with FakeEndpoint(owned_by="someone") as server, engine(server.base_url) as policy:
        assert not policy.capabilities.json_schema


async def test_a_turn_continues_with_its_sampled_token_ids() -> None:
    said = ["<think>é</think><search>Paris</search> and so on", "It is.</answer>"]
    sampling = replace(REQUEST.sampling, max_new_tokens=99, stop=("</search>", "</answer>"))
    first = replace(REQUEST, sampling=sampling, prefix=("<think>",), tokens=True)
    async with FakeEndpoint(lambda _: said.pop(0)) as server, engine(server.base_url) as policy:
        searched = await policy.sample(first)
        assert searched.token_ids is not None
        begun = ("<think>", searched.token_ids, "<documents>", "")
        answered = await policy.sample(replace(first, prefix=begun))
    assert (searched.text, searched.stop_reason) == ("<think>é</think><search>Paris", "</search>")
    assert searched.token_ids == tuple(encoded(f"{searched.text}</search>"))
    for drawn, sent in zip((searched, answered), server.requests, strict=True):
        assert drawn.prompt_ids == tuple(sent["prompt"])
        assert len(drawn.token_ids or ()) == len(drawn.logprobs or ()) == drawn.usage.output_tokens
        assert drawn.usage.input_tokens == len(sent["prompt"])
        assert (sent["temperature"], sent["top_p"], sent["max_tokens"]) == (0.7, 0.9, 99)
        assert (sent["logprobs"], sent["return_token_ids"]) == (0, True)
    assert searched.prompt_ids == tuple(
        encoded("[system]Answer.[user]Capital of France?[assistant]<think>")
    )
    assert answered.prompt_ids == (
        *searched.prompt_ids,
        *searched.token_ids,
        *encoded("<documents>"),
    )


async def test_a_server_that_retokenizes_the_prompt_raises_token_drift() -> None:
    def drifting(asked: dict[str, Any]) -> dict[str, Any]:
        return ids_completion(asked, "Paris", prompt_token_ids=[*asked["prompt"][:-1], 1, 2])

    async with FakeEndpoint(drifting) as server, engine(server.base_url) as policy:
        with pytest.raises(TokenDrift, match="did not read") as caught:
            await policy.sample(replace(REQUEST, tokens=True))
    assert len(server.requests) == 1 and not caught.value.fatal


@pytest.mark.parametrize("gone", ["prompt_token_ids", "token_ids", "logprobs"])
async def test_a_reply_without_token_ids_or_logprobs_is_fatal(gone: str) -> None:
    def script(asked: dict[str, Any]) -> dict[str, Any]:
        return ids_completion(asked, "Paris", **{gone: None})

    async with FakeEndpoint(script) as server, engine(server.base_url) as policy:
        with pytest.raises(EndpointError, match=r"lacks token ids.*vLLM") as caught:
            await policy.sample(replace(REQUEST, tokens=True))
    assert len(server.requests) == 1 and caught.value.fatal


async def test_requests_have_the_form_that_the_server_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GATEWAY_KEY", "a-key")
    request = {"headers_env": {"api-key": "GATEWAY_KEY"}, "query": {"api-version": "2025-04-01"}}
    async with (
        FakeEndpoint() as server,
        engine(server.base_url, server="azure", request=request) as policy,
    ):
        await policy.sample(REQUEST)
    (sent,), (headers,) = server.requests, server.headers
    assert sent["max_completion_tokens"] == 17 and "max_tokens" not in sent
    assert headers["api-key"] == "a-key" and "Authorization" not in headers
    assert server.queries == [{"api-version": "2025-04-01"}]


async def test_a_header_without_its_variable_is_refused_before_any_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GATEWAY_KEY", raising=False)
    async with FakeEndpoint() as server:
        policy = engine(server.base_url, request={"headers_env": {"api-key": "GATEWAY_KEY"}})
        with pytest.raises(ConfigError, match="GATEWAY_KEY is not set"):
            async with policy:
                pass
    assert server.requests == []


async def test_check_of_a_healthy_endpoint_makes_no_call() -> None:
    async with FakeEndpoint() as server, engine(server.base_url) as policy:
        await policy.check()
    assert server.requests == []


async def test_cancelling_closes_the_request() -> None:
    async def hang(_: dict[str, Any]) -> str:
        await asyncio.Event().wait()
        return "never"

    async with FakeEndpoint(hang) as server, engine(server.base_url) as policy:
        call = asyncio.create_task(policy.sample(REQUEST))
        await server.received.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(server.aborted.wait(), 5)


async def test_concurrency_does_not_exceed_its_maximum() -> None:
    async def slow(_: dict[str, Any]) -> str:
        await asyncio.sleep(0.01)
        return "Paris"

    async with FakeEndpoint(slow) as server, engine(server.base_url, max_concurrency=2) as policy:
        await asyncio.gather(*map(policy.sample, draws(7)))
    assert server.most == 2


def test_the_digest_depends_on_endpoint_and_model() -> None:
    here = engine("http://127.0.0.1:8000/v1").digest
    assert here == engine("http://127.0.0.1:8000/v1/").digest
    assert here != engine("http://127.0.0.1:8001/v1").digest
    assert here != engine("http://127.0.0.1:8000/v1", model="other").digest


@pytest.mark.parametrize(
    "url",
    [
        *(None, "", "127.0.0.1:8000/v1", "ftp://host/v1", "http://", "http://127.0.0.1:99999/v1"),
        *("https://me:hunter2@host/v1", "http://[::1", "http://me:hunter2@[::1"),
    ],
)
def test_an_unusable_address_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url") as caught:
        engine(url)
    assert "hunter2" not in str(caught.value)
