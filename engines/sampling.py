"""The sampling interface: requests to a model, and completions.

Every engine (`engines.openai`, `engines.openvino`) and the ledger that wraps them implement
`Engine`; nothing above this room knows which one it talks to.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Literal, Protocol, Self, get_args

from storage.records import Message

FinishReason = Literal["stop", "length", "content_filter", "unknown"]
UsageBasis = Literal["reported", "tokenizer", "bytes"]
"""What token counts rest on, from the surest to the roughest: the engine's own report, a tokenizer
of ours, or an upper estimate from bytes (`engines.usage`)."""
_ROUGHNESS: tuple[UsageBasis, ...] = get_args(UsageBasis)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw. `temperature` 0 is greedy; `top_p` in (0, 1]; `stop` strings end a turn."""

    temperature: float = 0.8
    top_p: float = 0.95
    max_new_tokens: int = 96
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Structure:
    """A constraint on the generated text, if the engine supports it (`Capabilities`)."""

    kind: Literal["regex", "json_schema"]
    value: str


@dataclass(frozen=True, slots=True)
class CallIdentity:
    """Identity of a call, so that two draws of one prompt never share a result.

    Attributes:
        role: Role of the model ("policy", "judge", "verifier").
        question_id: the question that the call serves.
        path: Place in the question's work, e.g. "tree/0/2/1" or "rollout/0/2/1".
        draw: number of the draw at this place, from 0.
        prompt_hash: hash of the prompt templates in use.
        seed: the run's seed.
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
        prefix: Parts of the assistant's turn so far, which the model continues. Ids (sampled
            earlier) are taken as they are; a text (what the environment inserted) is encoded by
            itself, without special tokens. Only a text that comes first is encoded together with
            the rendered chat template, so that a prefilled turn has the tokens of its text.
        tokens: Whether the completion must have `prompt_ids`, `token_ids` and `logprobs`. Not
            part of the call's key, because it does not change the result.

    An engine without `Capabilities.token_ids` refuses both.
    """

    messages: tuple[Message, ...]
    sampling: Sampling
    identity: CallIdentity
    structure: Structure | None = None
    prefix: tuple[str | tuple[int, ...], ...] | None = None
    tokens: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a call; `cached_tokens` are the part of the input served from a cache.

    `basis` is that of the roughest count among them.
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
    """Text of a model, without the request's prefix and special tokens.

    Attributes:
        model: The name that the server reported.
        prompt_ids: The tokens of the prompt as the model read it, the prefix included.
        token_ids: The tokens that were sampled, with those of the stop string and the one that
            ended the turn.
        logprobs: Natural log-probability of each of `token_ids` under the model itself: at
            temperature 1, over all tokens. None if a constraint of ours closed the text.
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


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Features of an engine; callers check them first.

    `structured_output` is about `Structure("regex", …)`, `json_schema` about the other kind,
    `token_ids` about `SampleRequest.prefix` and `SampleRequest.tokens`.
    """

    structured_output: bool = False
    json_schema: bool = False
    token_ids: bool = False


class Engine(Protocol):
    """A model behind `sample`; used inside `async with engine`.

    Attributes:
        model: name of the model as the user wrote it.
        digest: hash of everything that decides what the model says (weights, adapters,
            quantisation, tokenizer, chat template), or of endpoint and name for a remote one.
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
            TokenDrift: If the endpoint did not read the prompt's tokens as they were sent.
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
    """Returns the hash of everything that decides a call's result; the ledger's key (32 hex
    digits).

    Args:
        request: The request.
        digest: Digest of the model. Its name does not count: a folder that was moved holds the
            same model, and draws the same.
    """
    return _hashed([request, digest])


def prompt_digest(request: SampleRequest) -> str:
    """Returns the hash of everything that decides a call's result; the ledger's key (32 hex
    digits).
    """
    return _hashed([request.messages, request.prefix])


def _hashed(content: object) -> str:
    canonical = _in_order(content).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(canonical, digest_size=16).hexdigest()


_VALUES: dict[type, Callable[[Any], Any]] = {
    one: attrgetter(*(field.name for field in fields(one) if field.name != "tokens"))
    for one in (SampleRequest, Message, Sampling, CallIdentity, Structure)
}


def _values(part: object) -> Any:
    return _VALUES[type(part)](part)


# A call's key is made for every call: arrays of all fields in their order are as unambiguous as
# objects with names, and made at a quarter of the cost.
_in_order = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_values).encode


def derived_seed(key: str) -> int:
    """Returns the 31-bit seed that a call carries, derived from its ledger key."""
    return int(key[:8], 16) & 0x7FFFFFFF
