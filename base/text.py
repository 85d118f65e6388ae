"""Text that every format can hold (no lone surrogates), hashes of it, and phrases in it."""

import difflib
import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any

Log = Callable[[str], None]
"""Logs a line for a person to read."""

_SURROGATE = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """Returns `text` with each lone surrogate replaced by U+FFFD.

    Models emit halves of characters that were cut between tokens. The replacement is visible and
    always the same, so two rows built from one reply are equal.
    """
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Returns "; did you mean `x`?" for the known word that is most similar, or ""."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"; did you mean `{near[0]}`?" if near else ""


def digest_of(*parts: str) -> str:
    """Returns the hash of the parts in order (24 hex digits), as in ids of trees and pairs."""
    return digest_of_many(parts)


def digest_of_many(parts: Iterable[str]) -> str:
    """Computes `digest_of` without holding all parts in memory."""
    digest, border = hashlib.blake2b(digest_size=12), ""
    for part in parts:
        digest.update(f"{border}{part}".encode("utf-8", "surrogatepass"))
        border = "\x1f"
    return digest.hexdigest()


def number_of(text: str) -> int:
    """Returns the hash of a text as a 64-bit number; seeds and choices come from it."""
    content = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")


def share_of(text: str) -> float:
    """Returns a hash of a text as a number in [0, 1), for example to hold out questions."""
    return number_of(text) / 2**64


def holds_phrase(text: str, phrase: str) -> bool:
    """Returns whether `text` holds `phrase` as whole words, in any case ("no" is not in
    "north").
    """
    if not phrase.strip():
        return False
    return re.search(rf"(?<!\w){re.escape(phrase.strip())}(?!\w)", text, re.IGNORECASE) is not None


def storable_values(value: Any) -> Any:
    """Returns a copy of nested dicts, lists and tuples in which every string (keys too) is
    `replace_surrogates`.
    """
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, dict):
        return {storable_values(key): storable_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [storable_values(inner) for inner in value]
    return value
