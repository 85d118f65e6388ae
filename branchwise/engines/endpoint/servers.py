"""Known kinds of servers: how their requests differ from OpenAI's, and what a server reports.

docs/endpoints.md shows the table, with a source for each row. `branchwise doctor` finds the
differences of other servers by asking them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from branchwise.base import terminal_safe

from ..settings import ModelSettings, RequestSettings, ServerName
from .chat import StructuredForm

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

_FORMS: dict[str, StructuredForm] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llama.cpp",
    "openai": "json_schema",
    "openai-internal": "json_schema",
    "system": "json_schema",
}
"""Form of constraints by the owner that a server gives its models; the first that fits counts."""
_SHOWN, _LONGEST_SHOWN = 10, 100
"""Number of models in a message, and characters of each name."""
_TEMPLATE = "chat_template_kwargs"


@dataclass(frozen=True, slots=True)
class RequestShape:
    """How the body of a request is changed before it is sent; see `RequestSettings`.

    Attributes:
        omit: Fields that are not sent, by their first or last name.
        renames: Renamings, applied one after the other: the server's, then those of the settings.
        extra: Further fields, those that switch thinking off included.
        merge_system: Whether the system turn becomes part of the user turn.
    """

    omit: frozenset[str] = frozenset()
    renames: tuple[Mapping[str, str], ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    merge_system: bool = False

    def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the body of a call in the form that the server takes."""
        shaped: dict[str, Any] = {}
        for name, value in body.items():
            new_name = name
            for rename in self.renames:
                new_name = rename.get(new_name, new_name)
            if not {name, new_name} & self.omit:
                shaped[new_name] = value
        if self.merge_system and "messages" in shaped:
            shaped["messages"] = with_merged_system(shaped["messages"])
        if "messages" in shaped:
            return merged(shaped, self.extra)
        # A prompt in token ids has been through the chat template.
        return merged(shaped, {k: v for k, v in self.extra.items() if k != _TEMPLATE})

    def apply_to_prompt(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a body of `/tokenize` with what decides the prompt."""
        shaped = merged(body, {k: v for k, v in self.extra.items() if k == _TEMPLATE})
        if self.merge_system:
            shaped["messages"] = with_merged_system(shaped["messages"])
        return shaped

    @property
    def thinking(self) -> bool | None:
        """Whether the fields switch thinking on or off; None if they do neither."""
        return _thinking_in(self.extra)


def server_kind(settings: ModelSettings) -> ServerName:
    """Returns the kind of a model's server; "auto" if the address does not show it."""
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
    return combined(_known(settings).request, settings.request)


def combined(low: RequestSettings, high: RequestSettings) -> RequestSettings:
    """Returns both differences together; where they disagree, `high` decides."""
    return RequestSettings(
        omit=tuple(dict.fromkeys((*low.omit, *high.omit))),
        rename=low.rename | high.rename,
        extra=merged(low.extra, high.extra),
        headers_env=low.headers_env | high.headers_env,
        query=low.query | high.query,
        merge_system=low.merge_system or high.merge_system,
    )


def request_shape(settings: ModelSettings) -> RequestShape:
    """Returns the shape of the requests for a model."""
    server, request = _known(settings), request_settings(settings)
    off = {} if settings.thinking else server.thinking_off
    off = {name: value for name, value in off.items() if name not in settings.request.omit}
    return RequestShape(
        frozenset(request.omit),
        tuple(filter(None, (server.request.rename, settings.request.rename))),
        merged(off, request.extra),
        request.merge_system,
    )


def decisive_settings(settings: ModelSettings) -> tuple[str, ...]:
    """Returns what decides the replies of a model besides its address and name.

    It is empty for a server that takes OpenAI's requests, and with the default rules.
    """
    shape = request_shape(settings)
    names = (sorted(shape.omit), list(shape.renames), shape.extra, shape.merge_system)
    query = request_settings(settings).query
    decisive = [*names, query, settings.thinking, settings.reasoning]
    usual = [[], [], {}, False, {}, False, "auto"]
    return () if decisive == usual else (json.dumps(decisive, sort_keys=True),)


def merged(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Returns both mappings together; blocks are merged, and `high` replaces other values."""
    together = dict(low)
    for name, value in high.items():
        block = together.get(name)
        are_blocks = isinstance(block, Mapping) and isinstance(value, Mapping)
        together[name] = merged(block or {}, value) if are_blocks else value
    return together


def _thinking_in(fields: Mapping[str, Any]) -> bool | None:
    """Returns whether request fields switch thinking on or off, in any vendor's words."""
    switches: list[bool] = []
    for name, value in fields.items():
        if name == _TEMPLATE and isinstance(value, Mapping):
            switches += [s for s in (_thinking_in(value),) if s is not None]
        elif name in ("enable_thinking", "thinking", "reasoning", "reasoning_effort"):
            block = value if isinstance(value, Mapping) else {"enabled": value}
            switches += [setting not in (False, "none", "disabled") for setting in block.values()]
    return any(switches) if switches else None


def with_merged_system(messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Returns messages whose system turn is part of the first user turn after it."""
    system = [turn["content"] for turn in messages if turn["role"] == "system"]
    turns = [dict(turn) for turn in messages if turn["role"] != "system"]
    if not system:
        return turns
    if not turns:
        return [{"role": "user", "content": "\n\n".join(system)}]
    turns[0]["content"] = "\n\n".join((*system, turns[0]["content"]))
    return turns


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The available models, their owners, and their context lengths in tokens if reported."""

    models: tuple[str, ...]
    owners: frozenset[str]
    contexts: Mapping[str, int]

    @property
    def form(self) -> StructuredForm:
        """The form in which this server takes constraints; "none" for unknown servers."""
        return next((form for owner, form in _FORMS.items() if owner in self.owners), "none")

    @property
    def models_shown(self) -> str:
        """The first models, for a message."""
        more = ", …" if len(self.models) > _SHOWN else ""
        shown = ", ".join(terminal_safe(name[:_LONGEST_SHOWN]) for name in self.models[:_SHOWN])
        return (shown or "none") + more


def read_models(reply: Any) -> ServerFacts | None:
    """Returns the facts in a reply to `GET /models`; None if it is not a list of models."""
    listed = reply.get("data") if isinstance(reply, dict) else None
    if not isinstance(listed, list):
        return None
    models = [m for m in listed if isinstance(m, dict)]
    return ServerFacts(
        models=tuple(str(m.get("id", "")) for m in models),
        owners=frozenset(str(m.get("owned_by", "")).lower() for m in models),
        contexts={
            str(m.get("id", "")): length
            for m in models
            if isinstance(length := m.get("max_model_len"), int)
        },
    )
