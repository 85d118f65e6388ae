"""Seeds: any 64-bit integer is one, as tables keep it; some generators take fewer."""

import hashlib

LEAST, MOST = -(1 << 63), (1 << 63) - 1
"""Range of an int64 column of a table or of the ledger."""


def fits(number: int) -> bool:
    """Returns whether a table can keep a whole number."""
    return LEAST <= number <= MOST


def folded(seed: int) -> int:
    """Returns a seed for generators that want one from 0 to 2**32 − 1: itself, or a hash of another
    one.
    """
    if 0 <= seed < 1 << 32:
        return seed
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=4).digest(), "big")
