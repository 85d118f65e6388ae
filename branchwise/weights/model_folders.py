"""Checks model folders in the format of transformers before any library reads them; hashes files.

Such a folder can name its own code (`auto_map`), weights outside the folder, or more layers than
fit into any memory; one of its files may be a pipe. For such code, transformers prompts the user.
Here, code from a folder never runs.
"""

import hashlib
import os
import re
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any

from branchwise.base import ConfigError, as_object, open_named, parse_json, read_named

ADAPTER_CONFIG = "adapter_config.json"
TRAINING_RECORD = "training.json"
"""File of every trained folder: what was trained, from which base, with the SHA-256 of adapters."""
MERGED_WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
_SHARD_INDEX = "model.safetensors.index.json"
MOST_LAYERS = 1000
"""Most layers of a model; the largest models have about a hundred."""

_READ = re.compile(r".*\.(json|jinja|model|safetensors|txt)")
_CONFIGS = (
    "config.json",
    "tokenizer_config.json",
    "generation_config.json",
    "processor_config.json",
    "preprocessor_config.json",
)
_LAYERS = re.compile(r"(num_|n_)?(\w+_)?layers?")


def path_from(folder: Path, model: Path) -> str:
    """Returns the path from `folder` to a model, which may be a link, for a record in `folder`."""
    # Readers follow the folder's links before "..", so the path must lead from the real folder.
    # A link to a GGUF file keeps its name, because the file in the hub's cache has no suffix.
    return os.path.relpath(model.parent.resolve() / model.name, folder.resolve())


def weight_files(folder: Path) -> list[Path]:
    """Returns the safetensors of merged weights: one file, or the shards in the index.

    Raises:
        ConfigError: If the index cannot be read, or names files outside the folder.
    """
    merged, index = folder / MERGED_WEIGHTS, folder / _SHARD_INDEX
    if merged.is_file():
        return [merged]
    if not index.is_file():
        return []
    try:
        shards = set(as_object(parse_json(read_named(index)))["weight_map"].values())
        lost = [name for name in shards if PurePath(name).name != name or "\0" in name]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(f"{index} is not an index of safetensors shards: {error!r}") from error
    if lost:
        raise ConfigError(f"{index}: {lost[0]!r} does not name a file in its folder")
    return [folder / name for name in sorted(shards)]


def file_hash(path: Path, *, sha256: bool = False) -> str:
    """Returns the hash of a file, computed once per path, size and modification time.

    Args:
        path: File to hash.
        sha256: Whether to return the SHA-256; default is a BLAKE2b of 128 bits.

    Raises:
        ConfigError: If the file cannot be read.
    """
    try:
        status = path.stat()
        return _hash_content(str(path.resolve()), status.st_size, status.st_mtime_ns, sha256)
    except OSError as error:
        raise ConfigError(f"cannot read the weights {path}: {error}") from error


@lru_cache(maxsize=256)
def _hash_content(path: str, size: int, mtime_ns: int, sha256: bool) -> str:
    with open_named(Path(path)) as file:
        return hashlib.file_digest(
            file, hashlib.sha256 if sha256 else lambda: hashlib.blake2b(digest_size=16)
        ).hexdigest()


def reject_code(folder: Path, *, all_files: bool = True) -> None:
    """Rejects a model folder whose files would run code or load files outside the folder.

    Args:
        folder: Folder that transformers or a vLLM server will read.
        all_files: Whether to check all files, or only the configurations.

    Raises:
        ConfigError: If the folder has such a file, or an unreadable one.
    """
    if (folder / ADAPTER_CONFIG).exists():
        raise ConfigError(
            f"{folder / ADAPTER_CONFIG}: next to merged weights, it would make libraries load "
            f"other weights. Move it to {folder.name}/adapter/"
        )
    try:
        names = sorted(path.name for path in folder.iterdir()) if all_files else ()
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read: {error.strerror}") from error
    for name in names:
        if _READ.fullmatch(name):
            with open_named(folder / name):
                pass  # a regular file
    for name in _CONFIGS:
        _check_config(folder / name, read_config(folder, name))


def read_config(folder: Path, name: str = "config.json") -> dict[str, Any]:
    """Returns a JSON object from a model folder; empty if the file is missing.

    Raises:
        ConfigError: If the file cannot be read.
    """
    path = folder / name
    try:
        return as_object(parse_json(read_named(path), constants=True))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({error}). Restore it from its source"
        ) from error


def _check_config(path: Path, config: Any) -> None:
    """Rejects code and absurd numbers of layers in a configuration, or in a part of it."""
    if isinstance(config, dict) and config.get("auto_map"):
        raise ConfigError(
            f"{path}: `auto_map` names code of the model, and code in model folders is never run. "
            "Choose a model that transformers supports; if it supports this one, remove `auto_map` "
            "from a copy"
        )
    for name, value in config.items() if isinstance(config, dict) else enumerate(config):
        if isinstance(value, dict | list):
            _check_config(path, value)
        elif _LAYERS.fullmatch(str(name)) and isinstance(value, int) and value > MOST_LAYERS:
            raise ConfigError(f"{path}: `{name}` is {value}, more than any model has")
