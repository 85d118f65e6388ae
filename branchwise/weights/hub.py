"""Weights from the Hugging Face hub, named `hub:owner/name` or `hub:owner/name@revision`."""

import re
from pathlib import Path

from branchwise.base import ConfigError

from .model_folders import MERGED_WEIGHTS, TOKENIZER, weight_files

HUB = "hub:"
_NAME = re.compile(r"hub:(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
_FILES = ["*.safetensors", "*.json", "*.jinja", "merges.txt", "vocab.txt", "tokenizer.model"]


def hub_folder(name: str, *, download: bool = True) -> Path:
    """Returns the local copy of a hub model; the network is used only for the first download.

    Args:
        name: `hub:owner/name` or `hub:owner/name@revision`.
        download: Whether to download a model that is not on this machine. If not, a copy without
            weights is enough, because its tokenizer can count tokens.

    Raises:
        ConfigError: If the name is invalid, the model does not exist or is not on this machine, or
            the hub cannot be reached.
    """
    hub_name = _NAME.fullmatch(name)
    if hub_name is None:
        raise ConfigError(f"{name!r}: write a hub model as hub:owner/name or hub:owner/name@branch")
    from huggingface_hub import snapshot_download

    def fetched(*, local_files_only: bool) -> Path:
        folder = Path(
            snapshot_download(
                hub_name["repository"],
                revision=hub_name["revision"],
                allow_patterns=_FILES,
                local_files_only=local_files_only,
            )
        )
        if download:  # an earlier one may have stopped in between
            for file in (*(weight_files(folder) or [folder / MERGED_WEIGHTS]), folder / TOKENIZER):
                if not file.is_file():
                    raise FileNotFoundError(f"{folder} lacks {file.name}")
        return folder

    try:
        return fetched(local_files_only=True)
    except (OSError, ValueError) as error:
        if not download:
            raise ConfigError(f"{name} is not on this machine") from error
    try:
        return fetched(local_files_only=False)
    except Exception as error:  # the hub's client raises many unrelated types
        raise ConfigError(
            f"cannot load {name} from the Hugging Face hub ({type(error).__name__}: {error}). "
            "Without a network, name a folder with its safetensors and tokenizer"
        ) from error
