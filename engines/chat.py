"""The wire format of chat completions: a request's body, and a reply as a `Completion`."""

import json
from typing import Any, Literal

from engines.sampling import Completion, FinishReason, SampleRequest, Structure
from engines.usage import TokenCounter, usage_of

StructuredForm = Literal["vllm", "vllm-guided", "json_schema", "none"]
"""How an endpoint takes a constraint. `vllm-guided` is vLLM before 0.11 (`guided_regex`)."""

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
}


class UnreadableReply(ValueError):
    """A reply with status 200 that is not a chat completion."""


def chat_body(
    request: SampleRequest, *, model: str, seed: int, form: StructuredForm
) -> dict[str, Any]:
    """The JSON body of `POST /chat/completions` for one draw."""
    messages = [{"role": m.role, "content": _sendable(m.content)} for m in request.messages]
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "max_tokens": request.sampling.max_new_tokens,
        "seed": seed,
        "n": 1,
    }
    if request.prefix is not None:
        messages.append({"role": "assistant", "content": _sendable(request.prefix)})
        body |= {"add_generation_prompt": False, "continue_final_message": True}
    if request.sampling.stop:
        body["stop"] = list(request.sampling.stop)
    if request.structure is not None:
        body |= _constraint(request.structure, form)
    return body


def read_reply(
    reply: Any, request: SampleRequest, *, model: str, latency_s: float, counter: TokenCounter
) -> Completion:
    """The `Completion` in the JSON of a reply, of any shape that endpoints send.

    A refusal, or a turn of reasoning alone (no content), is an empty text: what was not said is
    never put into the model's mouth.

    Args:
        reply: the JSON.
        request: what was asked.
        model: its name, where the reply names none.
        latency_s: how long it took.
        counter: counts the tokens that the reply does not (see `engines.usage`).

    Raises:
        UnreadableReply: no choice with a message in it, or its content is no text.
    """
    reply = _mapping(reply)
    choices = reply.get("choices")
    choice = _mapping(choices[0]) if isinstance(choices, list) and choices else {}
    message = _mapping(choice.get("message"))
    content = message.get("content")
    if not message or not isinstance(content, str | None):
        raise UnreadableReply(f"no choice with a text in {reply or type(reply).__name__!r}")
    refused = bool(message.get("refusal"))
    text = _storable(content) if content and not refused else ""
    said = _FINISH.get(str(choice.get("finish_reason")), "unknown")
    finish: FinishReason = "content_filter" if refused else said
    return Completion(
        text=text,
        finish_reason=finish,
        usage=usage_of(reply.get("usage"), request, text, finish, counter),
        model=_storable(str(reply.get("model") or model)),
        stop_reason=_stop_reason(choice, refused=refused),
        latency_s=latency_s,
    )


def _constraint(structure: Structure, form: StructuredForm) -> dict[str, Any]:
    """The fields of a body that constrain the reply."""
    schema = json.loads(structure.value) if structure.kind == "json_schema" else None
    if form == "json_schema":
        named = {"name": "reply", "schema": schema, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": named}}
    if form == "vllm-guided":
        return {"guided_regex": structure.value} if schema is None else {"guided_json": schema}
    field = {"regex": structure.value} if schema is None else {"json": schema}
    return {"structured_outputs": field}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _stop_reason(choice: dict[str, Any], *, refused: bool) -> str | None:
    """The stop string that ended the turn (vLLM), "refusal", or the server's own finish reason."""
    if refused:
        return "refusal"
    stop = choice.get("stop_reason")
    raw = stop if stop is not None else choice.get("finish_reason")
    return None if raw is None else _storable(str(raw))


def _sendable(text: str) -> str:
    """Lone surrogates cannot be sent as UTF-8; they become "?"."""
    return text.encode("utf-8", "replace").decode("utf-8")


_storable = _sendable
