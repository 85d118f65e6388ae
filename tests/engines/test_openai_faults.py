"""What a real server on loopback does wrong, as the OpenAI engine reports it."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from aiohttp import web
from endpoint_client import KEY_VARIABLE, REQUEST, draws, engine
from fake_endpoint import FakeEndpoint, completion, failure

from branchwise.base.errors import EndpointError
from branchwise.engines.endpoint.openai import OpenAIEngine
from branchwise.engines.sampling import call_key, derived_seed
from branchwise.engines.settings import ModelSettings
from branchwise.types import Message

KEY = "sk-verysecret-0123456789"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)


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
        completion(None, message={"content": 3}),
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
        with pytest.raises(
            EndpointError, match="answered 404: no, but it lists the model 'policy'"
        ) as e:
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


async def test_an_error_with_status_200_is_retried_on_the_path_of_token_ids() -> None:
    replies: list[Any] = [{"error": {"message": "slow down", "code": 429}}, "Paris"]
    async with (
        FakeEndpoint(lambda _: replies.pop(0)) as server,
        engine(server.base_url) as policy,
    ):
        assert (await policy.sample(replace(REQUEST, tokens=True))).attempts == 2


@pytest.mark.parametrize(
    ("status", "error", "says"),
    [
        (429, {"message": "You exceeded your quota", "code": "insufficient_quota"}, "no credit"),
        (400, {"message": "API key not valid. Pass a valid one."}, "TEST_KEY is not valid"),
        (400, {"message": "Your credit balance is too low"}, "no credit"),
        (401, {"message": "Your organization must be verified"}, "must be verified"),
        (404, {"message": "The deployment is missing"}, "The deployment is missing"),
    ],
)
async def test_what_no_retry_can_help_ends_the_run_at_once(
    status: int, error: dict[str, str], says: str
) -> None:
    def script(_: dict[str, Any]) -> web.Response:
        return web.json_response({"error": error}, status=status)

    async with FakeEndpoint(script) as server, engine(server.base_url) as policy:
        with pytest.raises(EndpointError, match=says) as caught:
            await policy.sample(REQUEST)
    assert caught.value.fatal
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"statusCode": 400, "error": "Bad Request", "message": "R"}, "Bad Request: R"),
        ({"error": "invalid_request", "error_description": "R"}, "invalid_request: R"),
        ({"error": {"message": "P", "metadata": {"raw": '{"error": {"message": "R"}}'}}}, "P: R"),
        ({"fault": {"faultstring": "R"}}, "400: R"),
        ({"errors": {"max_tokens": ["R"]}}, "400: R"),
    ],
)
async def test_all_parts_of_a_reason_are_shown(body: dict[str, Any], reason: str) -> None:
    def script(_: dict[str, Any]) -> web.Response:
        return web.json_response(body, status=400)

    async with FakeEndpoint(script) as server, engine(server.base_url) as policy:
        with pytest.raises(EndpointError, match=f"{reason}$"):
            await policy.sample(REQUEST)


async def test_a_key_at_the_end_of_what_is_looked_at_is_not_shown() -> None:
    padding = "x " * 9_994
    page = f"<html>{padding}{KEY}</html>"
    async with (
        FakeEndpoint(lambda _: web.Response(text=page, status=400)) as server,
        engine(server.base_url) as policy,
    ):
        with pytest.raises(EndpointError) as caught:
            await policy.sample(REQUEST)
    assert KEY[:8] not in str(caught.value)


async def test_cached_tokens_that_are_reported_apart_are_part_of_the_prompt() -> None:
    request = replace(REQUEST, messages=(Message("user", "word " * 5000),))
    usage = {"prompt_tokens": 700, "prompt_tokens_details": {"cached_tokens": 4400}}
    async with (
        FakeEndpoint(lambda _: completion("x", usage=usage | {"completion_tokens": 1})) as server,
        engine(server.base_url) as policy,
    ):
        assert (await policy.sample(request)).text == "x"


async def test_a_cut_prompt_without_blanks_is_noticed() -> None:
    request = replace(REQUEST, messages=(Message("user", "京都市" * 18_000),))
    usage = {"prompt_tokens": 4096, "completion_tokens": 1}
    async with (
        FakeEndpoint(lambda _: completion("x", usage=usage)) as server,
        engine(server.base_url) as policy,
    ):
        with pytest.raises(EndpointError, match="cut the prompt"):
            await policy.sample(request)


@pytest.mark.parametrize("status", [400, 403, 404, 501])
async def test_a_server_that_does_not_list_its_models_can_draw(status: int) -> None:
    async with FakeEndpoint(lambda _: "Paris") as server:
        server.models_status = status
        async with engine(server.base_url) as policy:
            await policy.check()
            assert (await policy.sample(REQUEST)).text == "Paris"


async def test_a_list_of_models_that_fails_for_now_is_named() -> None:
    async with FakeEndpoint(lambda _: "Paris") as server:
        server.models_status = 503
        with pytest.raises(EndpointError, match=r"/models answered 503.*set `server`"):
            await engine(server.base_url).__aenter__()
