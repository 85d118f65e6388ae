"""The OpenAI engine against a real server on loopback."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from aiohttp import web
from fake_endpoint import FakeEndpoint, completion, encoded, failure, ids_completion

from base.errors import ConfigError, EndpointError, TokenDrift
from engines.endpoint.openai import OpenAIEngine
from engines.endpoint.retry import RetryPolicy
from engines.sampling import (
    CallIdentity,
    SampleRequest,
    Sampling,
    Structure,
    Usage,
    call_key,
    derived_seed,
)
from engines.settings import ModelSettings
from storage.records import Message
from weights.chat_template import template_values

KEY = "sk-verysecret-0123456789"

REQUEST = SampleRequest(
    (Message("system", "Answer."), Message("user", "Capital of France?")),
    Sampling(temperature=0.7, top_p=0.9, max_new_tokens=17, stop=("</answer>",)),
    CallIdentity("policy", "q1", "tree/0"),
)


def draws(number: int) -> list[SampleRequest]:
    return [
        replace(REQUEST, identity=replace(REQUEST.identity, draw=draw)) for draw in range(number)
    ]


def engine(
    url: str, *, max_concurrency: int = 8, timeout_s: float = 20.0, **settings: Any
) -> OpenAIEngine:
    model = ModelSettings(
        **{"engine": "openai", "model": "policy", "base_url": url, "api_key_env": "TEST_KEY"}
        | settings
    )
    return OpenAIEngine(
        model,
        max_concurrency=max_concurrency,
        timeout_s=timeout_s,
        retry=RetryPolicy(base_s=0.0),
    )


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)


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


async def test_retries_are_bounded_and_the_client_adds_none() -> None:
    async with FakeEndpoint(lambda _: failure(500)) as server, engine(server.base_url) as policy:
        with pytest.raises(EndpointError, match=r"500.*4 attempts") as caught:
            await policy.sample(REQUEST)
    assert len(server.requests) == caught.value.attempts == 4
    assert not caught.value.fatal
    replies = [failure(500), failure(502), failure(400, "too long")]
    async with FakeEndpoint(lambda _: replies.pop(0)) as server, engine(server.base_url) as policy:
        with pytest.raises(EndpointError, match="too long") as caught:
            await policy.sample(REQUEST)
    assert caught.value.attempts == 3


@pytest.mark.parametrize(
    "reply",
    [
        {"error": {"message": "upstream"}},
        completion("x", finish_reason="error"),
        completion("x", finish_reason="abort"),
        completion("x", choices=[{"message": {"content": "x"}, "error": {"message": "no"}}]),
        completion("x", choices=[]),
        completion("x", choices=None),
        completion("x", choices=["x"]),
        completion(None, message={"content": {"text": "x"}}),
        [1],
        None,
        b"<html>hello</html>",
        b"{torn",
        b"[" * 100_000,
        b'{"choices": "\xff\xfe"}',
        b"",
    ],
    ids=lambda reply: str(reply)[:40],
)
async def test_a_reply_that_is_not_a_completion_is_an_error(reply: Any) -> None:
    def script(_: dict[str, Any]) -> Any:
        body = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        return web.Response(body=body, content_type="application/json")

    async with FakeEndpoint(script) as server, engine(server.base_url) as policy:
        with pytest.raises(EndpointError, match=r"unreadable.*4 attempts") as caught:
            await policy.sample(REQUEST)
    assert not caught.value.fatal


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "slow down", "code": 429}},
        {"error": {"message": "slow down", "type": "rate_limit_error"}},
        {"error": "busy", "status": 503},
        completion("x", choices=[{"error": {"code": 502, "message": "no"}}]),
    ],
)
async def test_a_transient_error_with_status_200_is_retried(error: dict[str, Any]) -> None:
    replies = [error, completion("Paris")]
    async with (
        FakeEndpoint(lambda _: replies.pop(0)) as server,
        engine(server.base_url) as policy,
    ):
        said = await policy.sample(REQUEST)
    assert (said.text, said.attempts) == ("Paris", 2)


@pytest.mark.parametrize(
    ("error", "says", "fatal"),
    [
        ({"error": {"message": "no", "code": "insufficient_quota"}}, "no credit left", True),
        ({"error": {"message": "no", "code": "invalid_api_key"}}, "answered 401", True),
        ({"error": {"message": "too long", "code": 400}}, "answered 400: too long", False),
    ],
)
async def test_a_permanent_error_with_status_200_is_not_retried(
    error: dict[str, Any], says: str, fatal: bool
) -> None:
    async with FakeEndpoint(lambda _: error) as server, engine(server.base_url) as policy:
        with pytest.raises(EndpointError, match=says) as caught:
            await policy.sample(REQUEST)
    assert caught.value.fatal == fatal
    assert len(server.requests) == 1


ERROR_BODIES = [
    {"error": {"message": "REASON"}},
    {"error": "REASON"},
    {"detail": "REASON"},
    {"detail": [{"loc": ["body", "n"], "msg": "REASON"}]},
    {"object": "error", "message": "REASON", "code": 400},
    {"object": "error", "message": {"detail": [{"loc": ["body", "n"], "msg": "REASON"}]}},
    {"Message": "REASON"},
    {"errors": [{"message": "REASON"}]},
    {"errors": ["REASON"]},
    {"msg": "REASON"},
    {"type": "error", "error": {"type": "invalid", "message": "REASON"}},
    {"error": {"code": 400, "details": [{"reason": "REASON"}]}},
    [{"error": {"code": 400, "message": "REASON", "status": "INVALID_ARGUMENT"}}],
    {"error_description": "REASON"},
    "REASON",
    "<html><head><style>p {}</style></head><body><p>REASON</p></body></html>",
]


@pytest.mark.parametrize("body", ERROR_BODIES, ids=lambda body: str(body)[:50])
async def test_the_reason_of_an_error_is_shown_whatever_its_shape(body: Any) -> None:
    text = body if isinstance(body, str) else json.dumps(body)

    def refused(_: dict[str, Any]) -> web.Response:
        return web.Response(text=text, status=400)

    async with FakeEndpoint(refused) as server, engine(server.base_url) as policy:
        with pytest.raises(EndpointError, match=r"answered 400: (body\.n: )?REASON$"):
            await policy.sample(REQUEST)


@pytest.mark.parametrize(
    ("body", "content_type", "says"),
    [
        (
            "<html>portal</html>",
            "text/html",
            "a web page.*check base_url.*<html>portal",
        ),
        ('data: {"choices": []}', "text/event-stream", "a stream instead of one reply"),
        ("", "application/json", "an empty body"),
        ("OK", "text/plain", r"not JSON \(text/plain.*'OK'"),
    ],
)
async def test_a_reply_that_is_not_json_is_described(
    body: str, content_type: str, says: str
) -> None:
    def reply(_: dict[str, Any]) -> web.Response:
        return web.Response(text=body, content_type=content_type)

    async with FakeEndpoint(reply) as server, engine(server.base_url) as policy:
        with pytest.raises(EndpointError, match=says):
            await policy.sample(REQUEST)


async def test_a_prompt_that_the_server_cut_fails_its_question() -> None:
    long = replace(REQUEST, messages=(Message("user", "word " * 12_000),))
    usage = {"prompt_tokens": 4096, "completion_tokens": 3, "total_tokens": 4099}
    async with (
        FakeEndpoint(lambda _: completion("x", usage=usage)) as server,
        engine(server.base_url) as policy,
    ):
        with pytest.raises(EndpointError, match=r"read 4,096 tokens.*it cut the prompt"):
            await policy.sample(long)
        assert (await policy.sample(REQUEST)).text == "x"
    assert len(server.requests) == 2, "a retry would be cut as well"


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("eos_token", "stop"),
        ("end_turn", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("model_length", "length"),
        (None, "unknown"),
    ],
)
async def test_finish_reasons_of_all_servers_are_known(reason: str | None, finish: str) -> None:
    async with (
        FakeEndpoint(lambda _: completion("x", finish_reason=reason)) as server,
        engine(server.base_url) as policy,
    ):
        assert (await policy.sample(REQUEST)).finish_reason == finish


async def test_a_401_error_names_the_variable_but_not_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeEndpoint(key="another") as server:
        policy = engine(server.base_url)
        with pytest.raises(EndpointError, match=r"401.*TEST_KEY is not valid") as caught:
            async with policy:
                pytest.fail("entered with a bad key")
        assert caught.value.fatal
        assert KEY not in f"{caught.value!r} {caught.value} {policy!r} {vars(policy)}"
        assert caught.value.__cause__ is None and caught.value.__suppress_context__
        monkeypatch.delenv("TEST_KEY")
        monkeypatch.setenv(
            "OPENAI_API_KEY", "another"
        )  # must not be sent, because the settings name another variable
        with pytest.raises(EndpointError, match="TEST_KEY is not set"):
            async with policy:
                pytest.fail("entered without a key")


@pytest.mark.parametrize("padding", range(0, 260, 20))
async def test_an_echoed_key_is_redacted(monkeypatch: pytest.MonkeyPatch, padding: int) -> None:
    secret = 'sk-very/secret+"0123456789"=='
    monkeypatch.setenv("TEST_KEY", secret)
    said = " ".join([secret, quote(secret), quote_plus(secret), json.dumps(secret), repr(secret)])
    said = f"{'x' * padding} {said}\x1b[31m at http://me:hunter2@host/v1"

    def echo(_: dict[str, Any]) -> Any:
        return failure(400, said) if len(server.requests) == 1 else {"error": said}

    async with FakeEndpoint(echo) as server, engine(server.base_url) as policy:
        for _ in range(2):
            with pytest.raises(EndpointError, match=r"\[key\]") as caught:
                await policy.sample(REQUEST)
            for part in ("sk-very", "0123456789", "hunter2", "\x1b"):
                assert part not in str(caught.value)


@pytest.mark.parametrize("drawn_before", [0, 1])
async def test_a_prompt_rejected_by_moderation_fails_alone(drawn_before: int) -> None:
    """OpenRouter answers 403 for such a prompt; it may be the first one of a resumed run."""

    def moderated(asked: dict[str, Any]) -> Any:
        flagged = asked["seed"] in seeds
        return failure(403, f"Your input was flagged, {KEY}") if flagged else "Paris"

    seeds = {derived_seed(call_key(REQUEST, "digest"))}
    async with FakeEndpoint(moderated) as server:
        settings = {"engine": "openai", "model": "policy", "base_url": server.base_url}
        model = ModelSettings.model_validate(settings | {"api_key_env": "TEST_KEY"})
        async with OpenAIEngine(model, digest="digest") as policy:
            for request in draws(2)[1:][:drawn_before]:
                await policy.sample(request)
            for _ in range(2):
                with pytest.raises(EndpointError, match=r"403.*flagged") as caught:
                    await policy.sample(REQUEST)
                assert type(caught.value) is EndpointError and not caught.value.fatal
                assert KEY not in str(caught.value)
    assert len(server.requests) == 3 + drawn_before, "the second 403 in a row is checked"


@pytest.mark.parametrize(("accepted", "fatal"), [(0, [True]), (1, [False, True])])
async def test_a_rejected_key_is_fatal_at_the_first_call_or_the_second_403(
    accepted: int, fatal: list[bool]
) -> None:
    answers = iter(["Paris"] * accepted)
    async with (
        FakeEndpoint(lambda _: next(answers, None) or failure(403, "not in your plan")) as server,
        engine(server.base_url) as policy,
    ):
        requests = draws(accepted + len(fatal))
        for request in requests[:accepted]:
            await policy.sample(request)
        for request, ends_run in zip(requests[accepted:], fatal, strict=True):
            with pytest.raises(EndpointError, match=r"403.*not in your plan") as caught:
                await policy.sample(request)
            assert caught.value.fatal == ends_run
            assert ("TEST_KEY" in str(caught.value)) == ends_run


async def test_a_missing_model_error_lists_available_models() -> None:
    async with FakeEndpoint(models=("llama", "qwen")) as server, engine(server.base_url) as policy:
        with pytest.raises(
            EndpointError, match=r"does not serve the model 'policy'. Available models: llama, qwen"
        ) as e:
            await policy.check()
        with pytest.raises(EndpointError, match="does not serve the model 'policy'"):
            await policy.sample(REQUEST)
    assert e.value.fatal
    assert len(server.requests) == 2
    async with FakeEndpoint(lambda _: failure(404)) as server, engine(server.base_url) as policy:
        with pytest.raises(EndpointError, match="lists the model 'policy' but answered 404") as e:
            await policy.sample(REQUEST)
    assert e.value.fatal


@pytest.mark.parametrize("status", [403, 405])
async def test_a_key_that_may_not_list_models_can_draw(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: Any) -> web.Response:
        return failure(status, "no permission to list models")

    monkeypatch.setattr(FakeEndpoint, "_models", refused)
    async with FakeEndpoint() as server, engine(server.base_url) as policy:
        await policy.check()
        assert (await policy.sample(REQUEST)).text == "Paris"


async def test_a_wrong_path_is_distinguished_from_a_missing_model() -> None:
    async with FakeEndpoint() as server:
        wrong = server.base_url.removesuffix("/v1")
        async with engine(wrong, structured_output="none") as policy:
            with pytest.raises(EndpointError, match="ends in /v1"):
                await policy.check()


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


async def test_a_refused_connection_is_reported_and_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    # Calls to a loopback server must not use a proxy from the environment.
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        with pytest.raises(EndpointError, match="nothing answers at http://127") as caught:
            async with engine(url):
                pytest.fail("entered without a server")
    assert caught.value.fatal
    async with FakeEndpoint() as server, engine(server.base_url) as policy:
        assert (await policy.sample(REQUEST)).text == "Paris"


async def test_a_server_that_sends_byte_by_byte_times_out() -> None:
    async def drip() -> AsyncIterator[bytes]:
        while True:  # a byte well within any limit on a single read
            yield b" "
            await asyncio.sleep(0.005)

    def script(_: dict[str, Any]) -> web.Response:
        return web.Response(body=drip(), content_type="application/json")

    async with (
        FakeEndpoint(script) as server,
        engine(server.base_url, timeout_s=0.1, structured_output="none") as policy,
    ):
        with pytest.raises(EndpointError, match="in time"):
            await asyncio.wait_for(policy.sample(REQUEST), 8)


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
