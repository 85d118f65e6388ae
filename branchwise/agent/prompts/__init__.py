"""Prompt files: one folder per protocol, one text file per prompt.

Every row stores the hash of its prompts.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files


@cache
def load_prompts(folder: str, package: str = __name__) -> dict[str, str]:
    """Returns the prompts of a package's folder by file name without its ending, stripped."""
    prompts = {
        entry.name.removesuffix(".txt"): entry.read_text(encoding="utf-8").strip()
        for entry in files(package).joinpath(folder).iterdir()
        if entry.name.endswith(".txt")
    }
    return dict(sorted(prompts.items()))


def prompts_digest(prompts: Mapping[str, str]) -> str:
    """Returns the hash of a set of prompts (12 hex digits)."""
    canonical = json.dumps(dict(sorted(prompts.items())), ensure_ascii=False)
    return hashlib.blake2b(canonical.encode(), digest_size=6).hexdigest()
