"""Texts and numbers: values that every format can hold, forms for comparison, hashes, means."""

import difflib
import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable
from statistics import fmean
from typing import Any

Log = Callable[[str], None]
"""Logs a line for a person to read."""

LEAST, MOST = -(1 << 63), (1 << 63) - 1
"""Range of an int64 column of a table or of the ledger, and so of a seed."""

_SURROGATE = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """Returns `text` with each lone surrogate replaced by U+FFFD.

    Models emit halves of characters that were cut between tokens. The replacement is visible and
    always the same, so two rows built from one reply are equal.
    """
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def fits_int64(number: int) -> bool:
    """Returns whether a table can store an integer."""
    return LEAST <= number <= MOST


def composed(text: str) -> str:
    """Returns `text` in Unicode's composed form (NFC), which decides identity.

    macOS writes the ü of a file name as u and a combining mark; elsewhere it is one character.
    """
    return text if text.isascii() else unicodedata.normalize("NFC", text)


_SAME_CHARACTER = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d", "-")
    | dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u02bb\u02bc\u00b4`", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"')
    | {"\u2044": "/"}
)
"""Dashes, quotation marks and the fraction slash."""
_INVISIBLE = re.compile("[\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufe00-\ufe0f\ufeff]")
"""Characters that are not shown: joiners, directions, selectors of a glyph's variant."""


def comparable(text: str) -> str:
    """Returns the form of a text in which names and titles are compared.

    Texts that look the same are equal: compatibility forms (NFKC), dashes, quotation marks, white
    space, invisible characters and case do not count. A superscript stays one: 10² is `10^2`, not
    `102`.
    """
    if not text.isascii():
        text = "".join(map(_compatible, unicodedata.normalize("NFC", _INVISIBLE.sub("", text))))
        text = unicodedata.normalize("NFKC", text.translate(_SAME_CHARACTER))
    return " ".join(text.replace("`", "'").split()).casefold()


def _compatible(character: str) -> str:
    """Returns a superscript or fraction so that it does not touch what precedes it."""
    kind = unicodedata.decomposition(character).partition(" ")[0]
    sign = {"<super>": "^", "<fraction>": " "}.get(kind)
    if sign is None:
        return character
    return sign + unicodedata.normalize("NFKC", character).replace("\u2044", "/")


def did_you_mean(word: str, candidates: Iterable[str], cutoff: float = 0.6) -> str:
    """Returns "; did you mean `x`?" for the candidate that is most similar, or ""."""
    near = difflib.get_close_matches(word, list(candidates), n=1, cutoff=cutoff)
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


def to_uint32(seed: int) -> int:
    """Returns a seed from 0 to 2**32 − 1: `seed` itself if it fits, else a hash of it."""
    if 0 <= seed < 1 << 32:
        return seed
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=4).digest(), "big")


def share_of(text: str) -> float:
    """Returns a hash of a text as a number in [0, 1), for example to hold out questions."""
    return number_of(text) / 2**64


def known_mean(values: Iterable[float | None]) -> float | None:
    """Returns the mean of the values that are not None; None without one."""
    known_values = [value for value in values if value is not None]
    return fmean(known_values) if known_values else None


def holds_phrase(text: str, phrase: str) -> bool:
    """Returns whether `text` holds `phrase` as whole words, in any spelling that is `comparable`
    ("no" is not in "north").
    """
    phrase = comparable(phrase)
    if not phrase:
        return False
    return re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", comparable(text)) is not None


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Returns a copy of nested dicts, lists and tuples with every string (keys too) changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {map_texts(key, change): map_texts(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [map_texts(inner, change) for inner in value]
    return value


def storable_values(value: Any) -> Any:
    """Returns a copy of nested values in which every string is `replace_surrogates`."""
    return map_texts(value, replace_surrogates)
