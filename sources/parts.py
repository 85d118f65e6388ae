"""Hash parts: the same key lies in the same part on every machine, whatever else is read."""

from sources.settings import Part
from storage.text import number_of

SHARES: dict[Part, int] = {"warm": 30, "train": 25, "dev": 15, "test": 30}
"""Per cent of the keys in each part."""


def hashed(*parts: object) -> int:
    """A 64-bit number that depends on `parts` alone; seeds and choices come from it."""
    return number_of("\x1f".join(map(str, parts)))


def folded_question(text: str) -> str:
    """Case and spacing folded: questions that read alike are one question, whatever their ids."""
    return " ".join(text.casefold().split())


def part_of(key: str) -> Part:
    """The part of a key: warm 30 %, train 25 %, dev 15 %, test 30 %."""
    place = hashed("part", key) % 100
    for part, share in SHARES.items():
        if place < share:
            return part
        place -= share
    raise AssertionError("shares add up to 100")
