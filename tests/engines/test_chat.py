"""Replies of any shape give a completion or an error with a message."""

import copy
import json
from typing import Any

from fake_endpoint import completion, encoded, ids_completion
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.base.errors import EndpointError
from branchwise.engines.endpoint.replies import UnreadableReply, read_ids_reply, read_reply
from branchwise.engines.endpoint.usage import TokenCounter
from branchwise.engines.sampling import CallIdentity, Completion, SampleRequest, Sampling
from branchwise.types import Message

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
REQUEST = SampleRequest((Message("user", "Hi"),), Sampling(), CallIdentity("policy", "q", "p"))
PROMPT = encoded("Hi")
IDS = ids_completion({"prompt": PROMPT}, "Paris")
WHOLE = completion("Paris", usage={"prompt_tokens": 3, "prompt_tokens_details": {}})


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Returns the path of every value inside `value`."""
    inner: Any = enumerate(value) if isinstance(value, list) else ()
    if isinstance(value, dict):
        inner = value.items()
    return [path for key, one in inner for path in ((*at, key), *paths(one, (*at, key)))]


def read(reply: Any) -> None:
    try:
        said = read_reply(reply, REQUEST, model="asked", latency_s=0.1, counter=TokenCounter())
    except UnreadableReply:
        return
    assert isinstance(said, Completion)
    json.dumps([said.text, said.model, said.stop_reason], ensure_ascii=False).encode("utf-8")
    assert 0 <= said.usage.cached_tokens <= said.usage.input_tokens < 2**63
    assert said.usage.input_tokens > 0
    assert bool(said.text) <= said.usage.output_tokens < 2**63


@settings(deadline=None)
@given(JSON)
def test_any_json_gives_a_completion_or_an_error(reply: Any) -> None:
    read(reply)


def with_replaced(whole: dict[str, Any], place: tuple[Any, ...], odd: Any) -> dict[str, Any]:
    reply = copy.deepcopy(whole)
    inner: Any = reply
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = odd
    return reply


@settings(deadline=None)
@given(st.sampled_from(paths(WHOLE)), JSON)
def test_a_reply_with_any_field_replaced_gives_a_completion_or_an_error(
    place: tuple[Any, ...], odd: Any
) -> None:
    read(with_replaced(WHOLE, place, odd))


@settings(deadline=None)
@given(st.sampled_from(paths(IDS)), JSON)
def test_token_ids_of_any_shape_are_complete_or_an_error(place: tuple[Any, ...], odd: Any) -> None:
    try:
        said = read_ids_reply(
            with_replaced(IDS, place, odd), REQUEST, tuple(PROMPT), url="here", model="asked"
        )
    except (UnreadableReply, EndpointError):
        return
    assert said.prompt_ids == tuple(PROMPT)
    assert said.token_ids is not None and said.logprobs is not None
    assert len(said.token_ids) == len(said.logprobs) == said.usage.output_tokens
    assert {type(i) for i in said.token_ids} == {int} and {type(p) for p in said.logprobs} == {
        float
    }
