"""Seeds: any 64-bit integer, as in the tables; some generators accept only smaller ones."""

import hashlib

LEAST, MOST = -(1 << 63), (1 << 63) - 1
"""Range of an int64 column of a table or of the ledger."""


def fits_int64(number: int) -> bool:
    """Returns whether a table can store an integer."""
    return LEAST <= number <= MOST


def to_uint32(seed: int) -> int:
    """Returns a seed from 0 to 2**32 − 1: `seed` itself if it fits, else a hash of it."""
    if 0 <= seed < 1 << 32:
        return seed
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=4).digest(), "big")
