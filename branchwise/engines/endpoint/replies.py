"""Reads the replies of endpoints, in any shape that servers send, as `Completion`s."""

import json
from dataclasses import replace
from typing import Any, Literal, TypeGuard

from branchwise.base import EndpointError, TokenDrift, replace_surrogates

from ..reasoning import split_reasoning
from ..sampling import Completion, FinishReason, SampleRequest, Usage
from .usage import SMALLEST_CONTEXT, TokenCounter, cached_tokens, least_prompt_tokens, usage_of

ReasoningRule = Literal["drop", "reply", "keep"]
"""How a reply is separated from its reasoning (`engines.settings.ModelSettings.reasoning`)."""

FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",  # Together, Mistral's older models
    "eos_token": "stop",  # TGI
    "stop_sequence": "stop",  # TGI, Anthropic
    "end_turn": "stop",  # Anthropic, through gateways
    "complete": "stop",  # Cohere
    "finish_reason_stop": "stop",  # Vertex AI
    "length": "length",
    "max_tokens": "length",  # Anthropic; Gemini in capitals
    "max_output_tokens": "length",
    "model_length": "length",  # Mistral
    "content_filter": "content_filter",
    "refusal": "content_filter",  # Anthropic
    "safety": "content_filter",  # Gemini, and the next four
    "recitation": "content_filter",
    "blocklist": "content_filter",
    "prohibited_content": "content_filter",
    "spii": "content_filter",
}
"""Our finish reason for that of a server, in lower case. All others are "unknown"."""

OVERLONG = "overlong"
"""Stop reason of a completion that was too long to keep; its text is empty."""
REASONING_ONLY = "reasoning only"
"""Stop reason of a completion that has reasoning, but no reply."""
_FAILED = frozenset({"error", "abort", "insufficient_system_resource"})
"""Finish reasons of a generation that the server did not finish (gateways; vLLM; DeepSeek)."""
_REASONING_FIELDS = (
    *("reasoning_content", "reasoning"),  # SGLang, DeepSeek, llama.cpp; vLLM, OpenRouter, Ollama
    *("thinking", "reasoning_text", "reasoning_details"),  # gateways
)
"""Fields in addition to `content`, the most common first."""
_STATUS_OF_CODE = {
    "rate_limit": 429,
    "too_many_requests": 429,
    "insufficient_quota": 402,
    "insufficient_credits": 402,
    "invalid_api_key": 401,
    "authentication": 401,
    "permission": 403,
    "overloaded": 503,
    "unavailable": 503,
    "internal": 500,
    "server_error": 500,
    "timeout": 504,
}
"""HTTP status for words in the code or type of an error that a server sent with status 200."""
_SHORTEST_LIMIT = 2**16
_CHARACTERS_A_TOKEN = 64
_LONGEST_LABEL = 1000
_NO_LOGPROB = 1e6


class UnreadableReply(ValueError):
    """A reply has status 200, but its content is unusable."""


class ErrorInReply(ValueError):
    """A reply has status 200, but holds an error.

    Attributes:
        status: HTTP status that fits the error.
        reason: The server's message.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def longest_text(max_new_tokens: int) -> int:
    """Returns the character limit of a completion, far above the length of `max_new_tokens`."""
    return max(_SHORTEST_LIMIT, _CHARACTERS_A_TOKEN * max_new_tokens)


def parse_body(body: bytes, content_type: str) -> Any:
    """Returns the JSON of a reply.

    Raises:
        UnreadableReply: If it is something else; the message names what it is and its beginning.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        text = body.decode("utf-8", "replace").strip()
        raise UnreadableReply(_describe_body(text, content_type)) from error


def _describe_body(text: str, content_type: str) -> str:
    """Returns what a body is that is not JSON, with a remedy, and its whole text.

    The text is not shortened here, because a truncated key would not be redacted.
    """
    if not text:
        return "an empty body"
    if "html" in content_type or text[:1] == "<":
        return f"a web page instead of JSON; check base_url, which usually ends in /v1: {text!r}"
    if "event-stream" in content_type or text.startswith("data:"):
        return f"a stream instead of one reply; set `stream: false` in request.extra: {text!r}"
    return f"not JSON ({content_type or 'no content type'}): {text!r}"


def read_reply(
    reply: Any,
    request: SampleRequest,
    *,
    model: str,
    latency_s: float,
    counter: TokenCounter,
    rule: ReasoningRule = "drop",
    longest: int = _SHORTEST_LIMIT,
) -> Completion:
    """Returns the `Completion` in the JSON of a reply.

    A refusal, or reasoning without a reply, becomes an empty text: we never invent model output.
    A text too long for its token limit also becomes empty, because it would fill the ledger and
    cutting it would change it. Its stop reason is `OVERLONG`.

    Args:
        reply: Parsed JSON of the reply.
        request: The request.
        model: Name of the model, used if the reply does not give one.
        latency_s: Duration of the call in seconds.
        counter: Counter for tokens that the reply does not report (see `engines.endpoint.usage`).
        rule: How the reply is separated from its reasoning.
        longest: Character limit for the text (`longest_text`).

    Raises:
        EndpointError: If the server cut the prompt.
        ErrorInReply: If the reply holds an error whose kind is known.
        UnreadableReply: If no choice has a message, the content is not a text, or the choice
            reports another error.
    """
    whole_reply, (reply, choice) = reply, _first_choice(reply)
    message = _mapping(choice.get("message"))
    if not message:
        raise UnreadableReply(f"no choice with a message in {whole_reply!r}")
    is_refused = bool(message.get("refusal"))
    finish = "content_filter" if is_refused else _finish_reason(choice)
    text, reasoning = _text_and_reasoning(message, rule, finish)
    text = "" if is_refused else replace_surrogates(text)
    usage = usage_of(reply.get("usage"), request, reasoning + text, finish, counter)
    _check_whole_prompt(request, usage, reply.get("usage"))
    stop_reason = _stop_reason(choice, refused=is_refused)
    raw = _raw(message, choice, text)
    if max(len(text), len(reasoning), len(raw or "") // 4) > longest:
        text, reasoning, raw, finish, stop_reason = "", "", None, "length", OVERLONG
    elif reasoning and not text.strip() and not is_refused:
        text, stop_reason = "", REASONING_ONLY
    return Completion(
        text=text,
        finish_reason=finish,
        usage=usage,
        model=_label(reply.get("model") or model),
        stop_reason=stop_reason,
        reasoning=replace_surrogates(reasoning),
        raw=raw,
        latency_s=latency_s,
    )


def read_again(completion: Completion, rule: ReasoningRule) -> Completion:
    """Returns a stored completion as the present reader reads it, without a new attempt."""
    if completion.raw is None:
        message: dict[str, Any] = {"content": completion.text}
        finish = FINISH_REASONS.get((completion.stop_reason or "").lower())
        finish = finish or completion.finish_reason
    else:
        choice = json.loads(completion.raw)
        message = _mapping(choice.get("message"))
        finish = "content_filter" if message.get("refusal") else _finish_reason(choice)
    text, reasoning = _text_and_reasoning(message, rule, finish)
    is_refused = bool(message.get("refusal"))
    text = "" if is_refused else text
    stop_reason = completion.stop_reason
    if reasoning and not text.strip() and not is_refused:
        text, stop_reason = "", REASONING_ONLY
    elif stop_reason == REASONING_ONLY:
        stop_reason = finish
    return replace(
        completion,
        text=text,
        reasoning=reasoning,
        finish_reason=finish,
        stop_reason=stop_reason,
        attempts=0,
    )


def _text_and_reasoning(
    message: dict[str, Any], rule: ReasoningRule, finish: FinishReason
) -> tuple[str, str]:
    """Returns the reply in a message, and its reasoning.

    With the rule `reply`, reasoning is the reply of a model that ended its turn without another:
    vLLM, SGLang, llama.cpp and LM Studio misfile the replies of some models.

    Raises:
        UnreadableReply: If the content is not a text.
    """
    content, parts = message.get("content"), ""
    if isinstance(content, dict):
        content = [content]
    if isinstance(content, list):  # parts, as some reasoning models send them
        parts, content = _joined(content, "reasoning"), _joined(content, "text")
    if not isinstance(content, str | None):
        raise UnreadableReply(f"the content is not a text: {content!r}")
    fields = (_plain_text(message.get(name)) for name in _REASONING_FIELDS)
    beside = next(filter(None, fields), parts)
    if rule == "keep":
        return content or "", beside
    text, inside = split_reasoning(content or "")
    reasoning = "\n\n".join(part for part in (beside, inside) if part)
    if rule == "reply" and finish == "stop" and beside and not (content or "").strip():
        return split_reasoning(beside)
    return text, reasoning


def _joined(parts: list[Any], kind: Literal["text", "reasoning"]) -> str:
    """Returns the text of a list of parts: of the reply, or of its reasoning."""
    texts: list[str] = []
    as_parts = ({"text": part} if isinstance(part, str) else part for part in parts)
    for part in map(_mapping, as_parts):
        is_reasoning = str(part.get("type")) in ("reasoning", "thinking")
        if is_reasoning == (kind == "reasoning"):
            texts.append(_plain_text(part))
    return "".join(texts)


def _plain_text(value: Any) -> str:
    """Returns the text of a field, of a part, or of nested parts (Mistral); "" if it has none."""
    if isinstance(value, list):
        return "".join(map(_plain_text, value))
    if isinstance(value, dict):
        fields = (
            value.get(name) for name in ("text", "content", "thinking", "reasoning", "summary")
        )
        return next(filter(None, map(_plain_text, fields)), "")
    return value if isinstance(value, str) else ""


def _raw(message: dict[str, Any], choice: dict[str, Any], text: str) -> str | None:
    """Returns the choice as JSON, to be read again; None if the other columns say all of it."""
    says = {name: value for name, value in message.items() if value not in (None, "", [], {})}
    if says.keys() <= {"role", "content"} and says.get("content", "") == text:
        return None
    raw_choice = {"message": message, "finish_reason": choice.get("finish_reason")}
    return replace_surrogates(json.dumps(raw_choice, ensure_ascii=False, default=str))


def _check_whole_prompt(request: SampleRequest, usage: Usage, reported: Any) -> None:
    least = least_prompt_tokens(request)
    # Some servers report the cached tokens apart.
    details = _mapping(_mapping(reported).get("prompt_tokens_details"))
    cached = [details.get("cached_tokens")]
    read = usage.input_tokens
    if is_ids(cached) and not usage.cached_tokens:
        read += cached[0]
    # A smaller count than any context length is a wrong count, not that of a cut prompt.
    if usage.basis == "reported" and SMALLEST_CONTEXT <= read < least:
        raise EndpointError(
            f"the server read {usage.input_tokens:,} tokens of a prompt with at least {least:,}: "
            "it cut the prompt. Raise its context length (Ollama: OLLAMA_CONTEXT_LENGTH), or show "
            "fewer or shorter passages"
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
        raise UnreadableReply(f"no choice with a text in {reply!r}")
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
        finish_reason=_finish_reason(choice),
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


def _first_choice(reply: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the reply and its first choice.

    Raises:
        ErrorInReply: If they hold an error whose kind is known.
        UnreadableReply: If they hold another error.
    """
    reply = _mapping(reply)
    choices = reply.get("choices")
    choice = _mapping(choices[0]) if isinstance(choices, list) and choices else {}
    reason = choice.get("finish_reason")
    error = choice.get("error") or (None if choice else reply.get("error"))
    if error or str(reason) in _FAILED:
        details = _mapping(error)
        status = _status_of(details, reply)
        message = str(details.get("message") or error or reason)
        if status is not None:
            raise ErrorInReply(status, message)
        raise UnreadableReply(f"the endpoint reports the error {message!r}")
    return reply, choice


def _status_of(error: dict[str, Any], reply: dict[str, Any]) -> int | None:
    """Returns the HTTP status that fits an error inside a reply; None if its kind is unknown."""
    codes = [error.get(name) for name in ("code", "status", "type")]
    for code in (*codes, reply.get("code"), reply.get("status")):
        if str(code).isdecimal() and 400 <= int(str(code)[:4]) < 600:
            return int(str(code))
    words = " ".join(map(str, codes)).lower()
    return next((status for word, status in _STATUS_OF_CODE.items() if word in words), None)


def _finish_reason(choice: dict[str, Any]) -> FinishReason:
    reason = str(choice.get("finish_reason")).partition(":")[0]  # "content_filter: PROHIBITED"
    return FINISH_REASONS.get(reason.lower(), "unknown")


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
