"""Rows from the Hugging Face hub."""

from collections.abc import Iterator
from typing import Any

from base.errors import ConfigError
from base.text import storable_values
from sources.files import Placed


def hub_rows(name: str) -> Iterator[Placed]:
    """Yields the rows of "owner/name", "owner/name:config" or "owner/name:config:split".

    Without a split, reads `train` if it exists, else the first one.

    Raises:
        ConfigError: If the package `datasets` is not installed, or the hub cannot be reached or
            does not have the set.
    """
    path, _, rest = name.partition(":")
    config, _, split = rest.partition(":")
    table = _load(path, config or None)
    chosen = split or ("train" if "train" in table else next(iter(table)))
    if chosen not in table:
        raise ConfigError(
            f"{path}: unknown split {chosen!r}; use one of {', '.join(sorted(table))}"
        )
    for number, row in enumerate(table[chosen], start=1):
        yield f"{name} ({chosen}): row {number}", storable_values(dict(row))


def _load(path: str, config: str | None) -> Any:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ConfigError(
            "data.source hub needs the package `datasets`: run `make setup EXTRAS=train` or "
            "`pip install -e .[train]`, or download the file and use data.source jsonl"
        ) from error
    try:
        return load_dataset(path, config)
    except Exception as error:  # the hub's client raises a dozen unrelated types
        raise ConfigError(
            f"cannot load {path} from the Hugging Face hub ({type(error).__name__}: "
            f"{error}). Without network access, download the file elsewhere. Then set "
            "`source` to hotpotqa, 2wiki, musique, popqa, bamboogle, nq, flashrag or jsonl, "
            "and `questions` to the file"
        ) from error
