"""File names made from ids: an id may hold `/`, `..`, `%`, spaces, or be longer than a name."""

import hashlib


def file_name(identity: str) -> str:
    """A name of 32 hex digits for any id: safe on every file system, the same on every machine.

    Hashed, not escaped, because file systems also fold case and cut long names.
    """
    raw = identity.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(raw, digest_size=16).hexdigest()
