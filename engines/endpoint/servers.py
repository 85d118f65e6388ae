"""Known kinds of servers: how their requests differ from OpenAI's.

docs/endpoints.md shows the table, with a source for each row. `branchwise doctor` finds the
differences of other servers by asking them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from engines.endpoint.chat import StructuredForm
from engines.settings import ModelSettings, RequestSettings, ServerName

_LIMIT = {"max_tokens": "max_completion_tokens"}
_TEMPLATE_OFF = {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}
_EFFORT_OFF = {"reasoning_effort": "none"}
_AZURE = ("openai.azure.com", "services.ai.azure.com", "cognitiveservices.azure.com")


@dataclass(frozen=True, slots=True)
class Server:
    """A kind of server, as its documentation or source described it in November 2026.

    Attributes:
        source: The documentation, or the issue that shows the behaviour.
        hosts: Ends of host names by which "auto" recognises it.
        models: Pattern of model names that belong to this kind, at these hosts.
        request: How requests differ from OpenAI's.
        thinking_off: Body fields that switch thinking off.
        form: Form in which it takes constraints; "none" if it has none, or not for all models.
    """

    source: str
    hosts: tuple[str, ...] = ()
    models: str = ".*"
    request: RequestSettings = field(default_factory=RequestSettings)
    thinking_off: Mapping[str, Any] = field(default_factory=dict)
    form: StructuredForm = "none"


SERVERS: dict[ServerName, Server] = {
    # The first kind whose host and model match counts, so this one is first.
    "openai-reasoning": Server(
        "platform.openai.com/docs/guides/reasoning",
        hosts=("api.openai.com", *_AZURE),
        models=r"(o[134]|gpt-5).*",
        request=RequestSettings(omit=("temperature", "top_p", "stop", "n", "seed"), rename=_LIMIT),
        form="json_schema",
    ),
    "openai": Server(
        "platform.openai.com/docs/api-reference/chat",
        hosts=("api.openai.com",),
        request=RequestSettings(rename=_LIMIT),
        form="json_schema",
    ),
    "azure": Server(
        "learn.microsoft.com/azure/ai-foundry/openai/reference",
        hosts=_AZURE,
        request=RequestSettings(rename=_LIMIT),
        form="json_schema",
    ),
    "mistral": Server(
        "docs.mistral.ai/api",
        hosts=("api.mistral.ai",),
        request=RequestSettings(omit=("n",), rename={"seed": "random_seed"}),
        form="json_schema",
    ),
    "gemini": Server(
        "ai.google.dev/gemini-api/docs/openai",
        hosts=("generativelanguage.googleapis.com",),
        request=RequestSettings(omit=("seed",)),
        thinking_off=_EFFORT_OFF,
        form="json_schema",
    ),
    "anthropic": Server(
        "docs.anthropic.com/en/api/openai-sdk",
        hosts=("api.anthropic.com",),
        request=RequestSettings(omit=("seed", "n", "top_p")),
    ),
    "dashscope": Server(
        "alibabacloud.com/help/en/model-studio/deep-thinking",
        hosts=("dashscope.aliyuncs.com", "dashscope-intl.aliyuncs.com"),
        thinking_off={"enable_thinking": False},
    ),
    "deepseek": Server(
        "api-docs.deepseek.com/guides/thinking_mode",
        hosts=("api.deepseek.com",),
        request=RequestSettings(omit=("seed", "n")),
        thinking_off={"thinking": {"type": "disabled"}},
    ),
    "openrouter": Server(
        "openrouter.ai/docs/use-cases/reasoning-tokens",
        hosts=("openrouter.ai",),
        request=RequestSettings(omit=("n",)),
        thinking_off={"reasoning": {"effort": "none"}},
    ),
    "vllm": Server(
        "docs.vllm.ai/en/stable/features/reasoning_outputs",
        thinking_off=_TEMPLATE_OFF,
        form="vllm",
    ),
    "sglang": Server("docs.sglang.io/docs/basic_usage", thinking_off=_TEMPLATE_OFF, form="sglang"),
    "tgi": Server(
        "huggingface.co/docs/text-generation-inference",
        # It takes only top_p below 1, and no value means 1.
        request=RequestSettings(omit=("n", "top_p")),
        form="tgi",
    ),
    "llama.cpp": Server(
        "github.com/ggml-org/llama.cpp tools/server", thinking_off=_TEMPLATE_OFF, form="llama.cpp"
    ),
    "ollama": Server(
        "docs.ollama.com/openai",
        request=RequestSettings(omit=("n",)),
        thinking_off=_EFFORT_OFF,
        form="json_schema",
    ),
    "lm-studio": Server(
        "lmstudio.ai/docs/developer/openai-compat",
        request=RequestSettings(omit=("n",)),
        thinking_off=_EFFORT_OFF,
        form="json_schema",
    ),
}


@dataclass(frozen=True, slots=True)
class RequestShape:
    """How the body of a request is changed before it is sent; see `RequestSettings`."""

    omit: frozenset[str] = frozenset()
    rename: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    merge_system: bool = False
    switches_thinking_off: bool = False

    def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the body in the form that the server takes."""
        shaped = {self.rename.get(k, k): v for k, v in body.items() if k not in self.omit}
        if self.merge_system:
            shaped["messages"] = with_merged_system(shaped["messages"])
        return merged(shaped, self.extra)


def server_kind(settings: ModelSettings) -> ServerName:
    """Returns the kind of a model's server; "auto" if the address does not tell."""
    if settings.server != "auto":
        return settings.server
    host = (urlsplit(settings.base_url or "").hostname or "").lower()
    for name, server in SERVERS.items():
        at_host = any(host == end or host.endswith(f".{end}") for end in server.hosts)
        if at_host and re.fullmatch(server.models, settings.model):
            return name
    return "auto"


def _known(settings: ModelSettings) -> Server:
    return SERVERS.get(server_kind(settings), Server(""))


def constraint_form(settings: ModelSettings) -> StructuredForm | None:
    """Returns the form of constraints that settings decide; None if the server has to be asked."""
    if settings.structured_output != "auto":
        return settings.structured_output
    kind = server_kind(settings)
    return None if kind == "auto" else SERVERS[kind].form


def request_settings(settings: ModelSettings) -> RequestSettings:
    """Returns the differences of a model's server and of its own settings together."""
    known, own = _known(settings).request, settings.request
    return RequestSettings(
        omit=tuple(dict.fromkeys((*known.omit, *own.omit))),
        rename=known.rename | own.rename,
        extra=merged(known.extra, own.extra),
        headers_env=known.headers_env | own.headers_env,
        query=known.query | own.query,
        merge_system=known.merge_system or own.merge_system,
    )


def request_shape(settings: ModelSettings) -> RequestShape:
    """Returns the shape of the requests for a model."""
    request = request_settings(settings)
    off = {} if settings.thinking else _known(settings).thinking_off
    return RequestShape(
        frozenset(request.omit),
        request.rename,
        merged(off, request.extra),
        request.merge_system,
        bool(off),
    )


def decisive_settings(settings: ModelSettings) -> tuple[str, ...]:
    """Returns what decides the replies of a model besides its address and name.

    It is empty for a server that takes OpenAI's requests, and with the default rules.
    """
    shape = request_shape(settings)
    names = (sorted(shape.omit), shape.rename, shape.extra, shape.merge_system)
    query = request_settings(settings).query
    decisive = [*names, query, settings.thinking, settings.reasoning]
    usual = [[], {}, {}, False, {}, False, "auto"]
    return () if decisive == usual else (json.dumps(decisive, sort_keys=True),)


def merged(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Returns both mappings together; blocks are merged, and `high` replaces other values."""
    together = dict(low)
    for name, value in high.items():
        block = together.get(name)
        are_blocks = isinstance(block, Mapping) and isinstance(value, Mapping)
        together[name] = merged(block or {}, value) if are_blocks else value
    return together


def with_merged_system(messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Returns messages whose system turn is part of the first user turn after it."""
    system = [turn["content"] for turn in messages if turn["role"] == "system"]
    turns = [dict(turn) for turn in messages if turn["role"] != "system"]
    if system:
        turns[0]["content"] = "\n\n".join((*system, turns[0]["content"]))
    return turns
