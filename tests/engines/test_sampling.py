"""A call's key covers everything that affects the result, and is stable across versions."""

from dataclasses import fields, replace
from typing import Any

import pytest

from branchwise.engines.sampling import (
    CallIdentity,
    SampleRequest,
    Sampling,
    Structure,
    Usage,
    call_key,
    cost_usd,
    prompt_digest,
)
from branchwise.engines.settings import Price
from branchwise.types import Message

REQUEST = SampleRequest(
    messages=(Message("system", "Answer."), Message("user", "Où ?")),
    sampling=Sampling(stop=("\n",)),
    identity=CallIdentity("policy", "q1", "tree/0", 1, "abc", 7),
    structure=Structure("regex", "a|b"),
    prefix=("<answer>", (1, 2)),
)


def _other(value: Any) -> Any:
    """Returns a different value of the same type."""
    if isinstance(value, str):
        return value + "x"
    return value + 1 if isinstance(value, int | float) else (*value, "x")


def _variants() -> list[SampleRequest]:
    """Returns copies of the request, each with one field changed, at any depth."""
    found = [
        replace(REQUEST, prefix=None),
        replace(REQUEST, prefix=("<answer>", (12,))),
        replace(REQUEST, prefix=("<answer>", "12")),
        replace(REQUEST, structure=None),
        replace(REQUEST, messages=REQUEST.messages[:1]),
        # Moving text from one message to the next makes another request.
        replace(REQUEST, messages=(Message("system", "Answer.Où ?"), Message("user", ""))),
    ]
    for name in ("sampling", "identity", "structure"):
        part = getattr(REQUEST, name)
        for field in fields(part):
            changed = replace(part, **{field.name: _other(getattr(part, field.name))})
            found.append(replace(REQUEST, **{name: changed}))
    for other in (Message("assistant", "Où ?"), Message("user", "Ou ?")):
        found.append(replace(REQUEST, messages=(REQUEST.messages[0], other)))
    return found


def test_requests_that_differ_in_any_field_have_different_keys() -> None:
    keys = {call_key(one, "digest") for one in [REQUEST, *_variants()]}
    keys.add(call_key(REQUEST, "other"))
    keys.add(
        call_key(replace(REQUEST, tokens=True), "digest")
    )  # the draw is the same, so the key is, too
    assert len(keys) == 1 + len(_variants()) + 1


def test_keys_of_earlier_runs_do_not_change() -> None:
    # If a key changes, every unfinished run pays for its calls again.
    assert call_key(REQUEST, "digest") == "cd79d0e13b203db25502572e717e7d86"
    assert prompt_digest(REQUEST) == "b506d43166ed1f1eecee7fc14d73b018"
    assert len(call_key(replace(REQUEST, prefix=("\ud83d",)), "digest")) == 32
    constrained = replace(REQUEST, prefix=None)
    assert call_key(constrained, "digest") == "91edc24e8d5f34d653bb489aace8d595"
    plain = replace(constrained, structure=None)
    assert call_key(plain, "digest") == "4659c4aeec6f52179ca50ae2da6bae58"
    assert prompt_digest(plain) == "0867369f55a47c2837b29ccaa825631b"


def test_cost_depends_on_cached_tokens_and_price() -> None:
    usage = Usage(input_tokens=1_000_000, cached_tokens=400_000, output_tokens=100_000)
    assert cost_usd(usage, Price(input=1.0, cached=0.1, output=5.0)) == pytest.approx(1.14)
    assert cost_usd(usage, Price(input=1.0, output=5.0)) == pytest.approx(1.5)
    assert cost_usd(usage, None) is None
