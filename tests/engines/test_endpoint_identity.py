"""An endpoint's calls belong to its identity, or else to its address, and to its model's rules."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchwise.engines.endpoint.client import endpoint_digest
from branchwise.engines.settings import ModelSettings

ADDRESSES = st.builds(
    "{}://{}:{}{}".format,
    st.sampled_from(["http", "https"]),
    st.sampled_from(["a", "b.example", "127.0.0.1", "localhost", "[::1]"]),
    st.integers(1, 65535),
    st.sampled_from(["", "/v1", "/v1/", "/team/v1"]),
)
NAMES = st.sampled_from(["lab", "Qwen 72B", "gpu-7", "a/b", "a#b", "a?b", "größe", "x" * 400])


def digest(base_url: str, **settings: Any) -> str:
    return endpoint_digest(ModelSettings(engine="openai", base_url=base_url, **settings))


@given(old=ADDRESSES, new=ADDRESSES, name=NAMES, other=NAMES)
def test_only_the_identity_counts_if_there_is_one(
    old: str, new: str, name: str, other: str
) -> None:
    assert digest(old, identity=name) == digest(new, identity=name)
    assert digest(old, identity=name) != digest(old)
    assert (digest(old, identity=name) == digest(old, identity=other)) == (name == other)


@given(old=ADDRESSES, new=ADDRESSES)
def test_without_an_identity_the_address_counts_and_may_be_an_identity_later(
    old: str, new: str
) -> None:
    assert (digest(old) == digest(new)) == (old.rstrip("/") == new.rstrip("/"))
    assert digest(new, identity=old) == digest(old)
    assert digest(new, identity=f"{old.rstrip('/')}/") == digest(old)


def test_localhost_and_its_number_are_the_same_endpoint_only_by_identity() -> None:
    name, number = "http://localhost:8000/v1", "http://127.0.0.1:8000/v1"
    assert digest(name) != digest(number)
    assert digest(name, identity=number) == digest(number)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"thinking": True},
        {"reasoning": "keep"},
        {"request": {"omit": ["seed"]}},
        {"request": {"query": {"api-version": "1"}}},
        {"server": "mistral"},
    ],
    ids="-".join,
)
def test_what_changes_replies_counts_with_an_identity_too(change: dict[str, Any]) -> None:
    url = "http://a:8000/v1"
    assert digest(url, identity="lab", **change) != digest(url, identity="lab")


@pytest.mark.parametrize(
    ("identity", "says"),
    [
        ("", "is blank"),
        (" \t", "is blank"),
        ("a\nb", "control character"),
        ("a\x1b[31mb", "control character"),
        ("sk-abcdefgh", "looks like a key"),
        ("AIzaSyA0_b1C2d3E4f5G6h7I8j9K0lMnOpQrStU", "looks like a key"),
        ("https://me:secret@host/v1", "credentials"),
        ("https://host/v1?api-version=1", "a query"),
        ("https://host/token=abc", "looks like a key"),
        ("ftp://host/v1", "give an http or https address"),
    ],
)
def test_an_unusable_identity_is_refused_without_being_repeated(identity: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        ModelSettings(engine="openai", identity=identity)
    secrets = ("sk-abcdefgh", "AIzaSy", "secret", "token=abc")
    assert not any(secret in str(refused.value) for secret in secrets)
