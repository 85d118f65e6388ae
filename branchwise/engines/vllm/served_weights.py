"""Files that a vLLM server loads for a `model`: a folder of safetensors, and a LoRA if it has one.

The last adapter of a chain is served unmerged, on top of everything below it. Merged weights, and
weights from a GGUF file, are written once into the cache, in float32. A policy's served name is the
hash of its content.
"""

import re
from dataclasses import replace
from pathlib import Path

from branchwise.base import ConfigError, Log, digest_of
from branchwise.storage import cache_section, get_or_build
from branchwise.weights import (
    HUB,
    PACKAGED,
    PolicyFiles,
    adapter_config,
    check_adapter,
    has_tokenizer,
    load_policy,
    policy_digest,
    policy_files,
    read_config,
)

from ..endpoint.servers import decisive_settings
from ..settings import ModelSettings
from .command import Served

RANKS = (8, 16, 32, 64, 128, 256, 512)
"""LoRA ranks that vLLM can reserve memory for; an adapter needs the next larger one."""

_CACHED_AS = "safetensors float32"
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
# PEFT features that vLLM does not support: it applies a LoRA of one rank to plain matrices.
_BEYOND_LORA = (
    "alpha_pattern",
    "fan_in_fan_out",
    "layer_replication",
    "lora_bias",
    "modules_to_save",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
)
_VOCABULARY = ("embed_tokens", "lm_head")


def served_digest(settings: ModelSettings) -> str:
    """Returns the hash of everything that affects the served model (32 hex digits).

    The address does not count. For local weights, `weights.policies.policy_digest` hashes
    files and serving options; for a name that vLLM resolves itself, options and name are hashed.

    Raises:
        ConfigError: If the model's files are missing or unusable.
    """
    options = ["vllm", settings.dtype, *settings.server_args, *decisive_settings(settings)]
    identity = " ".join(options)
    files = served_files(settings.model)
    return digest_of(identity, settings.model) if files is None else policy_digest(files, identity)


def served_name(settings: ModelSettings) -> str:
    """Returns the model name for requests: a hash of its content, or the name that vLLM resolves.

    Raises:
        ConfigError: If the model's files are missing or unusable.
    """
    if served_files(settings.model) is None:
        return settings.model
    return f"branchwise-{served_digest(settings)[:16]}"


def served_files(model: str) -> PolicyFiles | None:
    """Returns the files of `model`; None for a name that vLLM resolves itself (`owner/name`).

    Raises:
        ConfigError: If the name means a folder or file of ours, and it is missing.
    """
    path = Path(model).expanduser()
    ours = model == PACKAGED or model.startswith(HUB) or path.exists()
    # `models/mine` looks like a hub name, but if a folder `models` exists, `mine` is missing there.
    lost = not _HUB_NAME.fullmatch(model) or (path.parent != Path() and path.parent.exists())
    return policy_files(model) if ours or lost else None


def prepare_weights(
    settings: ModelSettings, log: Log | None = None, rank: int | None = None
) -> Served:
    """Prepares the weights to serve; may take minutes the first time.

    Args:
        settings: Model settings.
        log: Callback for messages about damaged merged weights; defaults to the log.
        rank: LoRA rank of adapters added while the server runs; merges all adapters of the model.

    Raises:
        ConfigError: If weights or a package are missing, an adapter does not fit, the rank is too
            high, or others can write into the cache.
        StorageError: If the cache cannot be written.
    """
    files = served_files(settings.model)
    runtime_rank = _room_for(rank) if rank else 0
    if runtime_rank is None:
        raise ConfigError(f"LoRA rank {rank} exceeds vLLM's limit of {RANKS[-1]}. Choose a lower r")
    if files is None:
        return Served(settings.model, settings.model, rank=runtime_rank)
    name, adapter, lora_rank = served_name(settings), None, None
    if files.adapters and not runtime_rank:
        lora_rank = _lora_rank(files.adapters[-1])
    if lora_rank:
        adapter, files = files.adapters[-1], replace(files, adapters=files.adapters[:-1])
    folder = _safetensors(files, log)
    return Served(name, str(folder), adapter, lora_rank or runtime_rank, _context(folder))


def _lora_rank(adapter: Path) -> int | None:
    """Returns the LoRA rank that vLLM needs for an adapter; None if it cannot fully apply it.

    Such an adapter is merged, as are those below it.
    """
    check_adapter(adapter)
    config = adapter_config(adapter)
    targets = config.get("target_modules")
    targets = [targets] if isinstance(targets, str) else targets or []
    beyond = [key for key in _BEYOND_LORA if config.get(key)]
    vocabulary = [t for t in targets if t.endswith(_VOCABULARY)]
    odd_start = isinstance(config.get("init_lora_weights"), str)
    plain = config.get("peft_type") == "LORA" and config.get("bias", "none") == "none"
    if not plain or beyond or vocabulary or odd_start:
        return None
    return _room_for(int(config["r"]))


def _room_for(rank: int) -> int | None:
    return next((room for room in RANKS if room >= rank), None)


def _safetensors(files: PolicyFiles, log: Log | None) -> Path:
    """Returns a folder with the merged weights and a tokenizer: their own or a cache entry."""
    if not files.adapters and files.base.is_dir() and has_tokenizer(files.base):
        return files.base.resolve()

    def build(new: Path) -> None:
        model, tokenizer = load_policy(files)
        tokenizer.save_pretrained(str(new))
        model.save_pretrained(str(new))

    return get_or_build(cache_section("safetensors") / policy_digest(files, _CACHED_AS), build, log)


def _context(folder: Path) -> int | None:
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder}: config.json is missing. A vLLM server needs it")
    context = read_config(folder).get("max_position_embeddings")
    return context if isinstance(context, int) else None
