"""The form of requests for known servers, and settings for unknown ones."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from branchwise.engines.endpoint.remedies import find_settings
from branchwise.engines.endpoint.servers import (
    SERVERS,
    decisive_settings,
    request_shape,
    server_kind,
    with_merged_system,
)
from branchwise.engines.settings import ModelSettings, ServerName

KEY = "sk-abcdefghijklmnopqrstuvwxyz123456"
BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "system", "content": "Search."}, {"role": "user", "content": "Who?"}],
    "temperature": 0.8,
    "top_p": 0.95,
    "max_tokens": 96,
    "seed": 1,
    "n": 1,
    "stop": ["x"],
}


def at(host: str, model: str = "m", **settings: Any) -> ModelSettings:
    return ModelSettings(engine="openai", base_url=f"https://{host}/v1", model=model, **settings)


@pytest.mark.parametrize(
    ("host", "model", "kind"),
    [
        ("api.openai.com", "gpt-4.1", "openai"),
        ("eu.api.openai.com", "o3-mini", "openai-reasoning"),
        ("mine.openai.azure.com", "gpt-5-mini", "openai-reasoning"),
        ("mine.services.ai.azure.com", "gpt-4o", "azure"),
        ("mine.cognitiveservices.azure.com", "gpt-4o", "azure"),
        ("api.openai.com.example", "o3-mini", "auto"),
        ("api.mistral.ai", "mistral-small", "mistral"),
        ("dashscope-intl.aliyuncs.com", "qwen3-8b", "dashscope"),
        ("127.0.0.1", "o3-mini", "auto"),
    ],
)
def test_a_vendor_is_recognised_by_its_host(host: str, model: str, kind: str) -> None:
    assert server_kind(at(host, model)) == kind
    assert server_kind(at(host, model, server="ollama")) == "ollama"


@pytest.mark.parametrize(
    ("kind", "absent", "present"),
    [
        ("openai-reasoning", {"temperature", "max_tokens", "seed"}, {"max_completion_tokens"}),
        ("azure", {"max_tokens"}, {"max_completion_tokens", "temperature"}),
        ("mistral", {"n", "seed"}, {"random_seed", "max_tokens"}),
        ("dashscope", set(), {"enable_thinking"}),
        ("ollama", {"n"}, {"reasoning_effort", "max_tokens", "seed"}),
        ("auto", set(), set(BODY)),
    ],
)  # fmt: skip
def test_a_known_server_gets_the_fields_that_it_takes(
    kind: str, absent: set[str], present: set[str]
) -> None:
    body = request_shape(at("127.0.0.1", server=kind)).apply(BODY)
    assert not absent & body.keys()
    assert present <= body.keys()


def test_own_settings_are_added_to_those_of_the_server() -> None:
    request = {
        "omit": ["top_p"],
        "rename": {"max_tokens": "limit"},
        "extra": {"chat_template_kwargs": {"thinking": True}, "provider": {"order": ["a"]}},
        "merge_system": True,
    }
    body = request_shape(at("127.0.0.1", server="vllm", request=request)).apply(BODY)
    assert body["limit"] == 96
    assert not {"top_p", "max_tokens"} & body.keys()
    assert body["chat_template_kwargs"] == {"enable_thinking": False, "thinking": True}
    assert body["provider"] == {"order": ["a"]}
    assert body["messages"] == [{"role": "user", "content": "Search.\n\nWho?"}]
    assert BODY["messages"][0]["role"] == "system", "the request itself is unchanged"


def test_thinking_is_switched_off_unless_it_is_asked_for() -> None:
    assert request_shape(at("h", server="dashscope")).apply(BODY)["enable_thinking"] is False
    assert "enable_thinking" not in request_shape(at("h", server="dashscope", thinking=True)).apply(
        BODY
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"request": {"omit": ["seed"]}},
        {"request": {"extra": {"reasoning_effort": "low"}}},
        {"request": {"query": {"api-version": "1"}}},
        {"reasoning": "keep"},
        {"thinking": True},
        {"server": "dashscope"},
    ],
)
def test_what_decides_replies_is_part_of_the_models_identity(changed: dict[str, Any]) -> None:
    assert decisive_settings(at("h")) == ()
    assert decisive_settings(at("h", **changed)) != ()
    assert decisive_settings(at("h", request={"headers_env": {"api-key": "MY_KEY"}})) == ()


@pytest.mark.parametrize(
    ("request_block", "says"),
    [
        ({"omit": ["messages"]}, "every server needs it"),
        ({"extra": {"api_key": "x"}}, "headers_env"),
        ({"extra": {"a": {"b": KEY}}}, "headers_env"),
        ({"query": {"key": "x"}}, "headers_env"),
        ({"query": {"sig": "x"}}, "headers_env"),
        ({"extra": {"a": [{"b": {"type": "api_key", "key": "abcdef"}}]}}, "headers_env"),
        ({"extra": {"api_key": {"value": "hunter2"}}}, "headers_env"),
        ({"extra": {"tools": [KEY]}}, "headers_env"),
        ({"extra": {"model": "other"}}, "every server needs it"),
        ({"extra": {"seed": float("nan")}}, "JSON cannot"),
        ({"rename": {"seed": "temperature"}}, "another field"),
        ({"headers_env": {"api-key": KEY}}, "environment variable"),
        ({"headers_env": {"bad header": "KEY"}}, "HTTP header"),
    ],
)  # fmt: skip
def test_secrets_and_needed_fields_are_refused(request_block: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        at("h", request=request_block)


def test_the_page_shows_every_known_server_with_its_source() -> None:
    page = (Path(__file__).parents[2] / "docs" / "endpoints.md").read_text()
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    for name, server in SERVERS.items():
        row = rows[name]
        assert server.source in row
        off = json.dumps(server.thinking_off) if server.thinking_off else "–"
        for words in (*server.request.omit, *server.request.rename.values(), *server.hosts, off):
            assert words in row, name
        assert (f"`{server.form}`" if server.form != "none" else "–") in row.split(" | ")[4], name


Rule = Callable[[dict[str, Any]], bool]


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        (lambda b: True, {}),
        (lambda b: False, None),
        (lambda b: b["messages"][0]["role"] != "system", {"request": {"merge_system": True}}),
        (
            lambda b: "max_tokens" not in b,
            {"request": {"rename": {"max_tokens": "max_completion_tokens"}}},
        ),
        (
            lambda b: not {"max_tokens", "max_completion_tokens"} & b.keys(),
            {"request": {"omit": ["max_tokens"]}},
        ),
        (
            lambda b: not {"temperature", "top_p"} & b.keys(),
            {"request": {"omit": ["temperature", "top_p"]}},
        ),
        (
            lambda b: not {"n", "seed"} & b.keys(),
            {"request": {"omit": ["n"], "rename": {"seed": "random_seed"}}},
        ),
        (
            lambda b: not {"n", "seed", "random_seed"} & b.keys(),
            {"request": {"omit": ["n", "seed"]}},
        ),
        (
            lambda b: b.get("enable_thinking") is False,
            {"request": {"extra": {"enable_thinking": False}}},
        ),
        (lambda b: "structured_outputs" not in b, {"structured_output": "none"}),
    ],
)
def test_the_settings_of_a_refusing_server_are_found(
    rule: Rule, settings: dict[str, Any] | None
) -> None:
    calls: list[dict[str, Any]] = []

    async def accepts(body: dict[str, Any]) -> bool:
        calls.append(body)
        return rule(body)

    refused = {**BODY, "structured_outputs": {"regex": "a"}}
    found = asyncio.run(find_settings(accepts, refused))
    assert found == settings
    assert len(calls) <= 20
    if settings:
        own = at("h", **settings)
        body = request_shape(own).apply(BODY if own.structured_output == "none" else refused)
        assert rule(body), "the settings lead to a body that the server takes"


@pytest.mark.parametrize("kind", SERVERS)
def test_the_advice_for_any_field_of_a_known_server_works(kind: ServerName) -> None:
    """A server refuses one more field; with the settings that are found, it takes the request."""
    usual = request_shape(at("h", server=kind)).apply(BODY)
    for refused in usual.keys() - {"model", "messages"}:

        async def accepts(body: dict[str, Any], refused: str = refused) -> bool:
            return refused not in body

        settings = asyncio.run(find_settings(accepts, usual))
        assert settings, refused
        body = request_shape(at("h", server=kind, **settings)).apply(BODY)
        assert refused not in body


def test_a_lower_limit_is_found_before_the_limit_is_renamed() -> None:
    async def accepts(body: dict[str, Any]) -> bool:
        return int(body.get("max_tokens", 10**6)) <= 2048

    body = {**BODY, "max_tokens": 100_000}
    assert asyncio.run(find_settings(accepts, body)) == {"max_new_tokens": 781}


def test_merging_needs_no_user_turn() -> None:
    assert with_merged_system([{"role": "system", "content": "a"}]) == [
        {"role": "user", "content": "a"}
    ]
