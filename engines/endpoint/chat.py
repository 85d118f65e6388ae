"""Wire formats of an endpoint: request bodies, and replies as `Completion`s."""

import json
from collections.abc import Sequence
from typing import Any, Literal, TypeGuard

from base.errors import EndpointError, TokenDrift
from base.text import replace_surrogates
from engines.endpoint.usage import TokenCounter, cached_tokens, usage_of
from engines.sampling import (
    Completion,
    FinishReason,
    SampleRequest,
    Structure,
    Usage,
    begun_turn,
)
from weights.chat_template import TEMPLATE_VALUES

StructuredForm = Literal["vllm", "json_schema", "none"]
"""Format in which an endpoint takes a constraint; `vllm` is vLLM's own since 0.11."""

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
}


_TEMPLATE_VALUES = {"chat_template_kwargs": TEMPLATE_VALUES}
"""Body field that makes vLLM render the prompt as trainings do."""
_FAILED = frozenset({"error", "abort"})
"""Finish reasons of a generation that the server did not finish (gateways; vLLM)."""
OVERLONG = "overlong"
"""Stop reason of a completion that was too long to keep; its text is empty."""
_SHORTEST_LIMIT = 2**16
_CHARACTERS_A_TOKEN = 64
_LONGEST_LABEL = 1000
_NO_LOGPROB = 1e6


class UnreadableReply(ValueError):
    """A reply has status 200, but its content is unusable."""


def longest_text(max_new_tokens: int) -> int:
    """Returns the character limit of a completion, far above the length of `max_new_tokens`."""
    return max(_SHORTEST_LIMIT, _CHARACTERS_A_TOKEN * max_new_tokens)


def chat_body(
    request: SampleRequest,
    *,
    model: str,
    seed: int,
    form: StructuredForm,
    limit_field: str = "max_tokens",
) -> dict[str, Any]:
    """Returns the JSON body of `POST /chat/completions` for one draw.

    Args:
        request: The request.
        model: Name of the model.
        seed: Random seed of the draw.
        form: Format of constraints.
        limit_field: Name of the field for the token limit.
    """
    body = {"messages": _turns(request), **_how_to_draw(request, model, seed, form, limit_field)}
    return body | _TEMPLATE_VALUES if form == "vllm" else body


def ids_body(
    request: SampleRequest, prompt: Sequence[int], *, model: str, seed: int, form: StructuredForm
) -> dict[str, Any]:
    """Returns the JSON body of vLLM's `POST /completions` for one draw that continues `prompt`."""
    asked = {"prompt": prompt, "logprobs": 0, "return_token_ids": True}
    return asked | _how_to_draw(request, model, seed, form)


def prompt_parts(request: SampleRequest, model: str) -> list[dict[str, Any] | tuple[int, ...]]:
    """Returns the prompt in parts: bodies of vLLM's `POST /tokenize`, and ready token ids.

    The server renders the chat template, so only the server can encode the messages.
    """
    first, parts = begun_turn(request)
    turns, how = _turns(request), {"add_generation_prompt": True}
    if first:
        turns.append({"role": "assistant", "content": replace_surrogates(first)})
        how = {"add_generation_prompt": False, "continue_final_message": True}
    bare = {"model": model, "add_special_tokens": False}
    rendered = {"messages": turns} | bare | how | _TEMPLATE_VALUES
    encoded: list[dict[str, Any] | tuple[int, ...]] = [rendered]
    for part in parts:
        encoded.append(
            {"prompt": replace_surrogates(part)} | bare if isinstance(part, str) else part
        )
    return encoded


def read_reply(
    reply: Any,
    request: SampleRequest,
    *,
    model: str,
    latency_s: float,
    counter: TokenCounter,
    longest: int = _SHORTEST_LIMIT,
) -> Completion:
    """Returns the `Completion` in the JSON of a reply, in any shape that endpoints send.

    A refusal, or reasoning without content, becomes an empty text: we never invent model output.
    A text too long for its token limit also becomes empty, because it would fill the ledger and
    cutting it would change it. Its stop reason is `OVERLONG`.

    Args:
        reply: Parsed JSON of the reply.
        request: The request.
        model: Name of the model, used if the reply does not give one.
        latency_s: Duration of the call in seconds.
        counter: Counter for tokens that the reply does not report (see `engines.endpoint.usage`).
        longest: Character limit for the text (`longest_text`).

    Raises:
        UnreadableReply: If no choice has a message, the content is not a text, or the choice
            reports an error.
    """
    reply, choice = _first_choice(reply)
    message = _mapping(choice.get("message"))
    content = _joined(message.get("content"))
    if not message or not isinstance(content, str | None):
        raise UnreadableReply(f"no choice with a text in {reply or type(reply).__name__!r}")
    refused = bool(message.get("refusal"))
    text = replace_surrogates(content) if content and not refused else ""
    said = "content_filter" if refused else _FINISH.get(str(choice.get("finish_reason")), "unknown")
    usage = usage_of(reply.get("usage"), request, text, said, counter)
    if len(text) > longest:
        text, said, choice = "", "length", {"finish_reason": OVERLONG}
    return Completion(
        text=text,
        finish_reason=said,
        usage=usage,
        model=_label(reply.get("model") or model),
        stop_reason=_stop_reason(choice, refused=refused),
        latency_s=latency_s,
    )


def read_ids_reply(
    reply: Any, request: SampleRequest, prompt: tuple[int, ...], *, url: str, model: str
) -> Completion:
    """Returns the `Completion` in the JSON of vLLM's reply to an `ids_body`.

    Raises:
        EndpointError: If the reply lacks token ids, lacks a log-probability for any of them, or has
            more of them than the request allows.
        TokenDrift: If the server tokenised `prompt` differently.
        UnreadableReply: If no choice has a text, or the choice reports an error.
    """
    reply, choice = _first_choice(reply)
    text, read, ids = (choice.get(name) for name in ("text", "prompt_token_ids", "token_ids"))
    logprobs = _mapping(choice.get("logprobs")).get("token_logprobs")
    if not isinstance(text, str):
        raise UnreadableReply(f"no choice with a text in {reply or type(reply).__name__!r}")
    if not (is_ids(read) and is_ids(ids) and _are_logprobs(logprobs) and len(ids) == len(logprobs)):
        raise EndpointError(
            f"{url}: the reply lacks token ids of prompt and text, or a log-probability for each. "
            "Serve the model with vLLM 0.11 or newer.",
            fatal=True,
        )
    if read != list(prompt):
        raise TokenDrift(f"{url}: the server did not read the {len(prompt)} prompt tokens as sent")
    most = request.sampling.max_new_tokens
    if len(ids) > most or len(text) > longest_text(most):
        raise EndpointError(
            f"{url}: the reply ({len(ids)} tokens) exceeds the limit of the request ({most} tokens)"
        )
    return Completion(
        text=replace_surrogates(text),
        finish_reason=_FINISH.get(str(choice.get("finish_reason")), "unknown"),
        usage=Usage(len(prompt), cached_tokens(reply.get("usage"), len(prompt)), len(ids)),
        model=_label(reply.get("model") or model),
        stop_reason=_stop_reason(choice, refused=False),
        prompt_ids=prompt,
        token_ids=tuple(ids),
        logprobs=tuple(map(float, logprobs)),
    )


def is_ids(value: Any) -> TypeGuard[list[int]]:
    """Returns whether `value` is a list of token ids."""
    return isinstance(value, list) and all(type(i) is int and 0 <= i < 2**31 for i in value)


def _are_logprobs(value: Any) -> TypeGuard[list[float]]:
    return isinstance(value, list) and all(
        type(p) in (int, float) and abs(p) < _NO_LOGPROB for p in value
    )


def _turns(request: SampleRequest) -> list[dict[str, str]]:
    return [{"role": m.role, "content": replace_surrogates(m.content)} for m in request.messages]


def _how_to_draw(
    request: SampleRequest,
    model: str,
    seed: int,
    form: StructuredForm,
    limit_field: str = "max_tokens",
) -> dict[str, Any]:
    """Returns the body fields that chat and plain completions share."""
    body: dict[str, Any] = {
        "model": model,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        limit_field: request.sampling.max_new_tokens,
        "seed": seed,
        "n": 1,
    }
    if request.sampling.stop:
        body["stop"] = list(request.sampling.stop)
    if request.structure is not None:
        body |= _constraint(request.structure, form)
    return body


def _first_choice(reply: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the reply and its first choice.

    Raises:
        UnreadableReply: If the choice reports an error.
    """
    reply = _mapping(reply)
    choices = reply.get("choices")
    choice = _mapping(choices[0]) if isinstance(choices, list) and choices else {}
    error, reason = choice.get("error"), choice.get("finish_reason")
    if error or str(reason) in _FAILED:
        raise UnreadableReply(f"the endpoint reports the error {error or reason!r}")
    return reply, choice


def _constraint(structure: Structure, form: StructuredForm) -> dict[str, Any]:
    """Returns the body fields that constrain the reply."""
    schema = json.loads(structure.value) if structure.kind == "json_schema" else None
    if form == "json_schema":
        named = {"name": "reply", "schema": schema, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": named}}
    field = {"regex": structure.value} if schema is None else {"json": schema}
    return {"structured_outputs": field}


def _joined(content: Any) -> Any:
    """Returns the text of a list of parts, as some reasoning models send it, without the others."""
    if not isinstance(content, list):
        return content
    texts = [_mapping(part).get("text") for part in content]
    return "".join(text for text in texts if isinstance(text, str))


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _stop_reason(choice: dict[str, Any], *, refused: bool) -> str | None:
    """Returns the stop string that ended the turn (vLLM), "refusal", or the finish reason."""
    if refused:
        return "refusal"
    stop = choice.get("stop_reason")
    raw = stop if stop is not None else choice.get("finish_reason")
    return None if raw is None else _label(raw)


def _label(value: Any) -> str:
    """Returns a name to store with the completion; truncates very long names."""
    text = str(value)
    return replace_surrogates(text if len(text) <= _LONGEST_LABEL else text[:_LONGEST_LABEL] + "…")
