"""The wire format of chat completions: a request's arguments, and a reply as a `Completion`."""

import json
from typing import Any, Literal

from engines.sampling import Completion, FinishReason, SampleRequest, Structure, Usage

StructuredForm = Literal["vllm", "vllm-guided", "json_schema", "none"]
"""How an endpoint takes a constraint. `vllm-guided` is vLLM before 0.11 (`guided_regex`)."""

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
}


class UnreadableReply(ValueError):
    """A reply with status 200 that is not a chat completion."""


def chat_arguments(
    request: SampleRequest, *, model: str, seed: int, form: StructuredForm
) -> dict[str, Any]:
    """Keyword arguments of `chat.completions.create` for one draw."""
    messages = [{"role": m.role, "content": _sendable(m.content)} for m in request.messages]
    extra: dict[str, Any] = {}
    if request.prefix is not None:
        messages.append({"role": "assistant", "content": _sendable(request.prefix)})
        extra |= {"add_generation_prompt": False, "continue_final_message": True}
    arguments: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "max_tokens": request.sampling.max_new_tokens,
        "seed": seed,
        "n": 1,
    }
    if request.sampling.stop:
        arguments["stop"] = list(request.sampling.stop)
    if request.structure is not None:
        _constrain(arguments, extra, request.structure, form)
    return arguments | ({"extra_body": extra} if extra else {})


def read_reply(reply: Any, *, model: str, latency_s: float) -> Completion:
    """The `Completion` in a reply of any shape that endpoints send.

    A refusal, or a turn of reasoning alone (no content), is an empty text: what was not said is
    never put into the model's mouth.

    Raises:
        UnreadableReply: no choice with a message in it.
    """
    choices = getattr(reply, "choices", None)
    message = (
        getattr(choices[0], "message", None) if isinstance(choices, list) and choices else None
    )
    if not choices or message is None:
        raise UnreadableReply(f"no choices in {reply!r}"[:200])
    content = getattr(message, "content", None)
    refused = bool(getattr(message, "refusal", None))
    finish = "content_filter" if refused else _FINISH.get(str(choices[0].finish_reason), "unknown")
    return Completion(
        text=_storable(content) if isinstance(content, str) and not refused else "",
        finish_reason=finish,
        usage=_usage(getattr(reply, "usage", None)),
        model=_storable(str(getattr(reply, "model", None) or model)),
        stop_reason=_stop_reason(choices[0], refused=refused),
        latency_s=latency_s,
    )


def _constrain(
    arguments: dict[str, Any], extra: dict[str, Any], structure: Structure, form: StructuredForm
) -> None:
    schema = json.loads(structure.value) if structure.kind == "json_schema" else None
    if form == "json_schema":
        named = {"name": "reply", "schema": schema, "strict": True}
        arguments["response_format"] = {"type": "json_schema", "json_schema": named}
    elif form == "vllm-guided":
        extra |= {"guided_regex": structure.value} if schema is None else {"guided_json": schema}
    else:
        field = {"regex": structure.value} if schema is None else {"json": schema}
        extra["structured_outputs"] = field


def _usage(usage: Any) -> Usage:
    """Token counts; what the endpoint does not report counts as 0."""
    details = getattr(usage, "prompt_tokens_details", None)
    return Usage(
        input_tokens=getattr(usage, "prompt_tokens", None) or 0,
        cached_tokens=getattr(details, "cached_tokens", None) or 0,
        output_tokens=getattr(usage, "completion_tokens", None) or 0,
    )


def _stop_reason(choice: Any, *, refused: bool) -> str | None:
    """The stop string that ended the turn (vLLM), "refusal", or the server's own finish reason."""
    if refused:
        return "refusal"
    stop = getattr(choice, "stop_reason", None)
    raw = stop if stop is not None else choice.finish_reason
    return None if raw is None else _storable(str(raw))


def _sendable(text: str) -> str:
    """Lone surrogates cannot be sent as UTF-8; they become "?"."""
    return text.encode("utf-8", "replace").decode("utf-8")


_storable = _sendable
