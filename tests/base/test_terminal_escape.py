"""Escapes for text that could control a terminal; other text stays unchanged."""

import io
import json
import re
import sys
from typing import Any, cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from branchwise.base.terminal_escape import (
    TerminalSafeStream,
    bare,
    guard_streams,
    one_line,
    terminal_safe,
    terminal_safe_json,
    terminal_safe_lines,
    terminal_safe_yaml,
)

ANY = st.text(st.characters(codec=None) | st.sampled_from("\x1b\x9b\x85\u202e\u2028\ud800\r\n"))
ACTED_ON = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


@given(ANY)
def test_an_escaped_field_is_one_line_without_control_characters(text: str) -> None:
    assert not ACTED_ON.search(terminal_safe(text))
    assert len(terminal_safe(text).splitlines()) <= 1
    assert terminal_safe(terminal_safe(text)) == terminal_safe(text)


@given(ANY)
def test_line_breaks_are_kept_by_inert_lines(text: str) -> None:
    assert terminal_safe_lines(text).split("\n") == [
        terminal_safe(line) for line in text.split("\n")
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m\a\x7f\x9b", r"\x1b[31m\x07\x7f\x9b"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("\u202eab\u2066\u061c\u2028\ufeff", r"\u202eab\u2066\u061c\u2028\ufeff"),
        ("\ud800\U000e0041\ue000", r"\ud800\U000e0041\ue000"),
        ("👩‍👩‍👧 ❤️ می‌خواهم e\u0301 a\u00a0b\u3000c \\x1b", None),
        ("日本 العربية − ≥ │", None),
    ],
)
def test_only_control_and_invisible_characters_are_escaped(text: str, shown: str | None) -> None:
    assert terminal_safe(text) == (text if shown is None else shown)


def test_white_space_is_folded() -> None:
    assert one_line(" a\r\n\tb\u2028c\x1b ") == r"a b c\x1b"


values = st.recursive(
    st.none() | ANY, lambda inner: st.lists(inner) | st.dictionaries(ANY, inner), max_leaves=8
)


@given(values, st.sampled_from([None, 2]), st.booleans())
def test_escaped_json_has_the_same_value(value: object, indent: int | None, escaped: bool) -> None:
    text = terminal_safe_json(json.dumps(value, indent=indent, ensure_ascii=escaped))
    assert not ACTED_ON.search(text.replace("\n", ""))
    # Compared after a round trip, because JSON joins two adjacent surrogates to one character.
    assert json.loads(text) == json.loads(json.dumps(value))


@given(st.dictionaries(st.text(), st.text()))
def test_escaped_yaml_has_the_same_value(value: dict[str, str]) -> None:
    text = terminal_safe_yaml(value)
    assert not ACTED_ON.search(text.replace("\n", ""))
    assert yaml.safe_load(text) == value


def test_printable_yaml_is_not_escaped() -> None:
    assert terminal_safe_yaml({"b": "日本", "a": 1}) == "b: 日本\na: 1\n"


def test_streams_are_guarded_once_and_escape_unencodable_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("stdout", "stderr"):
        narrow = io.TextIOWrapper(io.BytesIO(), "latin-1", write_through=True)
        monkeypatch.setattr(sys, name, narrow)
    monkeypatch.setenv("PYTHON_COLORS", "1")
    inner = sys.stdout
    guard_streams()
    guard_streams()
    guarded = cast(Any, sys.stdout)
    assert type(guarded).__name__ == TerminalSafeStream.__name__
    assert bare(guarded) is inner
    print("é 日 \x1b[2J\n", end="")
    sys.stdout.writelines(["a\r", "b\n"])
    assert guarded.buffer.getvalue() == b"\xe9 \\u65e5 \\x1b[2J\na\\rb\n"


def test_guard_streams_accepts_a_process_without_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_COLORS", "1")
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    guard_streams()
    assert sys.stdout is None
