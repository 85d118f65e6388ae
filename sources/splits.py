"""Assigns questions to splits by hash, so that every machine draws the same ones."""

from base.text import number_of
from sources.settings import Split

SHARES: dict[Split, int] = {"warm": 30, "train": 25, "dev": 15, "test": 30}
"""Percentage of the keys per split."""


def hashed(*parts: object) -> int:
    """Returns a 64-bit number that depends only on `parts`, for seeds and choices."""
    return number_of("\x1f".join(map(str, parts)))


def folded_question(text: str) -> str:
    """Returns the question with case and spacing normalised, to find duplicates with other ids."""
    return " ".join(text.casefold().split())


def split_of(key: str) -> Split:
    """Returns the split of a key (see `SHARES`)."""
    place = hashed("part", key) % 100
    for split, share in SHARES.items():
        if place < share:
            return split
        place -= share
    raise AssertionError("shares add up to 100")
