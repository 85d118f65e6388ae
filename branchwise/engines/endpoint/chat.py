"""Bodies of requests to an endpoint, in OpenAI's form (`engines.endpoint.servers` changes it)."""

import json
from collections.abc import Sequence
from typing import Any, Literal

from branchwise.base import replace_surrogates
from branchwise.weights import template_values

from ..sampling import SampleRequest, Structure, begun_turn

StructuredForm = Literal["vllm", "sglang", "tgi", "llama.cpp", "json_schema", "none"]
"""Form in which an endpoint takes a constraint: a server's own (vLLM's since 0.11), or OpenAI's."""
REGEX_FORMS = frozenset({"vllm", "sglang", "tgi"})
"""Forms that have regular expressions; `json_schema` and `llama.cpp` have only JSON schemas."""
TEMPLATE_FORMS = frozenset({"vllm", "sglang", "llama.cpp"})
"""Forms of servers that pass values to the chat template."""


def chat_body(
    request: SampleRequest, *, model: str, seed: int, form: StructuredForm
) -> dict[str, Any]:
    """Returns the JSON body of `POST /chat/completions` for one draw.

    Args:
        request: The request.
        model: Name of the model.
        seed: Random seed of the draw.
        form: Form of constraints.
    """
    return {"messages": _turns(request), **_sampling_fields(request, model, seed, form)}


def ids_body(
    request: SampleRequest, prompt: Sequence[int], *, model: str, seed: int, form: StructuredForm
) -> dict[str, Any]:
    """Returns the JSON body of vLLM's `POST /completions` for one draw that continues `prompt`."""
    fields = {"prompt": prompt, "logprobs": 0, "return_token_ids": True}
    return fields | _sampling_fields(request, model, seed, form)


def prompt_parts(request: SampleRequest, model: str) -> list[dict[str, Any] | tuple[int, ...]]:
    """Returns the prompt in parts: bodies of vLLM's `POST /tokenize`, and ready token ids.

    The server renders the chat template, so only the server can encode the messages.
    """
    first, parts = begun_turn(request)
    turns, turn_options = _turns(request), {"add_generation_prompt": True}
    if first:
        turns.append({"role": "assistant", "content": replace_surrogates(first)})
        turn_options = {"add_generation_prompt": False, "continue_final_message": True}
    encoding = {"model": model, "add_special_tokens": False}
    rendered = {"messages": turns} | encoding | turn_options
    rendered["chat_template_kwargs"] = template_values(thinking=False)
    encoded: list[dict[str, Any] | tuple[int, ...]] = [rendered]
    for part in parts:
        encoded.append(
            {"prompt": replace_surrogates(part)} | encoding if isinstance(part, str) else part
        )
    return encoded


def _turns(request: SampleRequest) -> list[dict[str, str]]:
    return [{"role": m.role, "content": replace_surrogates(m.content)} for m in request.messages]


def _sampling_fields(
    request: SampleRequest, model: str, seed: int, form: StructuredForm
) -> dict[str, Any]:
    """Returns the body fields that chat and plain completions share."""
    body: dict[str, Any] = {
        "model": model,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "max_tokens": request.sampling.max_new_tokens,
        "seed": seed,
        "n": 1,
    }
    if request.sampling.stop:
        body["stop"] = list(request.sampling.stop)
    if request.structure is not None:
        body |= _constraint(request.structure, form)
    return body


def _constraint(structure: Structure, form: StructuredForm) -> dict[str, Any]:
    """Returns the body fields that constrain the reply."""
    schema = json.loads(structure.value) if structure.kind == "json_schema" else None
    if form == "vllm":
        field = {"regex": structure.value} if schema is None else {"json": schema}
        return {"structured_outputs": field}
    if form == "tgi":
        kind = "regex" if schema is None else "json"
        return {"response_format": {"type": kind, "value": schema or structure.value}}
    if schema is None:  # SGLang, the only other form with expressions (`REGEX_FORMS`)
        return {"regex": structure.value}
    named_schema = {"name": "reply", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": named_schema}}
