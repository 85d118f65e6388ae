"""Where things that can be made again are kept between runs: indexes, converted weights."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$BRANCHWISE_CACHE`, or `~/.cache/branchwise`; it may not exist yet."""
    given = os.environ.get("BRANCHWISE_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "branchwise"
