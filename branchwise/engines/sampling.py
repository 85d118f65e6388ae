"""The sampling interface: requests to a model, and completions.

Every engine (`engines.endpoint.openai`, `engines.embedded.openvino`) and the ledger that wraps them
implement `Engine`. Code outside this package does not depend on the kind of engine.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Literal, Protocol, Self, get_args

from branchwise.types import Message

from .settings import ModelSettings, Price

FinishReason = Literal["stop", "length", "content_filter", "unknown"]
UsageBasis = Literal["reported", "tokenizer", "bytes"]
"""Source of token counts, most reliable first: the engine's report, a tokenizer on this machine, or
an upper estimate from bytes (`engines.endpoint.usage`).
"""
_ROUGHNESS: tuple[UsageBasis, ...] = get_args(UsageBasis)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw. `temperature` 0 is greedy; `top_p` in (0, 1]; `stop` strings end a turn."""

    temperature: float = 0.8
    top_p: float = 0.95
    max_new_tokens: int = 96
    stop: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: ModelSettings, temperature: float | None = None) -> Self:
        """Returns how a model draws; `temperature` overrides the model's own."""
        return cls(
            temperature=model.temperature if temperature is None else temperature,
            top_p=model.top_p,
            max_new_tokens=model.max_new_tokens,
        )


@dataclass(frozen=True, slots=True)
class Structure:
    """A constraint on the generated text, if the engine supports it (`Capabilities`)."""

    kind: Literal["regex", "json_schema"]
    value: str


@dataclass(frozen=True, slots=True)
class CallIdentity:
    """Identity of a call; keeps draws of the same prompt from sharing a result.

    Attributes:
        role: Role of the model ("policy", "judge", "verifier").
        question_id: Identifier of the question that the call belongs to.
        path: Place in the question's work, e.g. "tree/0/2/1" or "rollout/0/2/1".
        draw: Number of the draw at this place, from 0.
        prompt_hash: Hash of the prompt templates in use.
        seed: Seed of the run.
    """

    role: str
    question_id: str
    path: str
    draw: int = 0
    prompt_hash: str = ""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """Messages to continue, sampling settings, and the call's identity.

    Attributes:
        prefix: Parts of the assistant's turn so far, which the model continues. Token ids (sampled
            earlier) are used unchanged. A text (inserted by the environment) is encoded separately,
            without special tokens. Only a text in first place is encoded together with the rendered
            chat template, so that a prefilled turn has the tokens of its text.
        tokens: Whether the completion must have `prompt_ids`, `token_ids` and `logprobs`. Not part
            of the call's key, because it does not change the result.

    An engine without `Capabilities.token_ids` rejects both.
    """

    messages: tuple[Message, ...]
    sampling: Sampling
    identity: CallIdentity
    structure: Structure | None = None
    prefix: tuple[str | tuple[int, ...], ...] | None = None
    tokens: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a call; `cached_tokens` are input tokens served from a cache.

    `basis` belongs to the least reliable of the counts.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    basis: UsageBasis = "reported"

    def __add__(self, other: "Usage") -> "Usage":
        same = self.basis == other.basis
        return Usage(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            self.basis if same else max(self.basis, other.basis, key=_ROUGHNESS.index),
        )


@dataclass(frozen=True, slots=True)
class Completion:
    """Text from a model, without the request's prefix and special tokens.

    Attributes:
        model: Model name reported by the server.
        prompt_ids: Tokens of the prompt as the model read it, including the prefix.
        token_ids: Sampled tokens, including the stop string's tokens and the end-of-turn token.
        attempts: Number of attempts; 0 for a stored reply that was read again.
        reasoning: The model's reasoning before the reply; "" if the engine reports none.
        raw: What the server sent, as JSON, if it says more than the other fields.
        logprobs: Natural log-probability of each of `token_ids` under the model itself: at
            temperature 1, over all tokens. None if our code closed the text to fit a constraint.
    """

    text: str
    finish_reason: FinishReason
    usage: Usage
    model: str
    stop_reason: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    latency_s: float = 0.0
    attempts: int = 1
    reasoning: str = ""
    raw: str | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Features of an engine; callers check them first.

    `structured_output` means support for `Structure("regex", …)`, `json_schema` for the other kind,
    `token_ids` for `SampleRequest.prefix` and `SampleRequest.tokens`.
    """

    structured_output: bool = False
    json_schema: bool = False
    token_ids: bool = False


class Engine(Protocol):
    """A model that completions are sampled from; use inside `async with engine`.

    Attributes:
        model: Model name as the user wrote it.
        digest: Hash of everything that affects the model's output (weights, adapters,
            quantisation, tokenizer, chat template); for a remote model, of endpoint and name.
    """

    @property
    def model(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def capabilities(self) -> Capabilities: ...

    async def sample(self, request: SampleRequest) -> Completion:
        """Draws one completion.

        Cancelling the awaiting task cancels the generation.

        Raises:
            EndpointError: If the endpoint refused or failed, or a capability is missing.
            TokenDrift: If the endpoint read other prompt tokens than the request contained.
        """
        ...

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exception: object) -> None: ...


def begun_turn(request: SampleRequest) -> tuple[str, list[str | tuple[int, ...]]]:
    """Returns the text to encode with the chat template, and the parts of the turn after it."""
    parts = [part for part in request.prefix or () if part]
    first = parts[0] if parts else ()
    return (first, parts[1:]) if isinstance(first, str) else ("", parts)


def call_key(request: SampleRequest, digest: str) -> str:
    """Returns the ledger key: a hash of everything that decides the result (32 hex digits).

    Args:
        request: The request.
        digest: Digest of the model. The model's name does not count: a moved folder contains the
            same model and gives the same draws.
    """
    return _hashed([request, digest])


def prompt_digest(request: SampleRequest) -> str:
    """Returns the hash of messages and prefix (32 hex digits)."""
    return _hashed([request.messages, request.prefix])


def _hashed(content: object) -> str:
    canonical = _in_order(content).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(canonical, digest_size=16).hexdigest()


_VALUES: dict[type, Callable[[Any], Any]] = {
    part: attrgetter(*(field.name for field in fields(part) if field.name != "tokens"))
    for part in (SampleRequest, Message, Sampling, CallIdentity, Structure)
}
# Every call needs a key. Arrays of all fields in a fixed order are as unambiguous as objects with
# names, at a quarter of the cost.
_in_order = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), default=lambda part: _VALUES[type(part)](part)
).encode


def derived_seed(key: str) -> int:
    """Returns the 31-bit seed of a call, derived from its ledger key."""
    return int(key[:8], 16) & 0x7FFFFFFF


def cost_usd(usage: Usage, price: Price | None) -> float | None:
    """Returns US dollars for `usage`; None if no price is set (unknown is not free).

    Cached input tokens are billed at `price.cached`, or as other input if that is None.
    """
    if price is None:
        return None
    cached_price = price.input if price.cached is None else price.cached
    fresh = usage.input_tokens - usage.cached_tokens
    total = fresh * price.input + usage.cached_tokens * cached_price
    return (total + usage.output_tokens * price.output) / 1_000_000
