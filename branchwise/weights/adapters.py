"""Checks the files of a PEFT adapter, configuration and weights, before PEFT reads them.

The files may be untrusted. PEFT allocates memory for any rank in the configuration, and supports
formats that run code.
"""

from pathlib import Path
from typing import Any

from branchwise.base import ConfigError, as_object, object_inside, parse_json, read_named

from .model_folders import ADAPTER_CONFIG, TRAINING_RECORD, file_hash
from .safe_loading import tensor_shapes

WEIGHTS = "adapter_model.safetensors"
HIGHEST_RANK = 8192
"""Highest allowed rank of a LoRA; larger ranks do not help any existing model."""

PROMPT_KINDS = frozenset(
    {
        *("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING"),
        *("ADAPTION_PROMPT", "CPT", "CARTRIDGE"),
    }
)
"""Types of PEFT adapters that are not a change of weights."""


def adapter_config(adapter: Path) -> dict[str, Any]:
    """Reads `adapter_config.json`.

    Raises:
        ConfigError: If it cannot be read, or contains unsafe values.
    """
    path = adapter / ADAPTER_CONFIG
    try:
        config = as_object(parse_json(read_named(path)))
        _reject_absurd(config)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: cannot be used as the configuration of an adapter ({error}). Restore it, or "
            "retrain the adapter"
        ) from error
    return config


def check_adapter(adapter: Path) -> None:
    """Rejects an adapter that is damaged, or would take too much memory to merge.

    Raises:
        ConfigError: If the adapter is damaged, too large or not the recorded one.
    """
    config = adapter_config(adapter)
    if str(config.get("init_lora_weights")).startswith("pissa_niter"):
        raise ConfigError(
            f"{adapter / ADAPTER_CONFIG}: `init_lora_weights` is {config['init_lora_weights']!r}, "
            "whose start is random, so it cannot be merged. Save it with PEFT's "
            "`path_initial_model_for_weight_conversion`"
        )
    _check_recorded_hash(adapter)
    ranks = {config.get("r"), *(config.get("rank_pattern") or {}).values()}
    for name, shape in tensor_shapes(adapter / WEIGHTS).items():
        # A LoRA's matrices are named "….lora_A.weight", (rank, inputs), and "….lora_B.weight".
        side = {"lora_A": 0, "lora_B": 1}.get(name.split(".")[-2:][0])
        if side is not None and len(shape) == 2 and shape[side] not in ranks:
            raise ConfigError(
                f"{adapter}: {name} in {WEIGHTS} has rank {shape[side]}, but {ADAPTER_CONFIG} has "
                f"rank {config.get('r')}. The files are from different trainings. Restore them"
            )


def load_tensors(model: Any, adapter: Path, *, trainable: bool = False) -> None:
    """Loads the tensors of a stored adapter into the adapter of a PEFT `model`.

    Raises:
        ConfigError: If the file lacks a tensor of the model, or has one that the model lacks. PEFT
            itself would ignore both.
    """
    keys = model.load_adapter(str(adapter), "default", is_trainable=trainable)
    for problem, names in (
        ("lacks tensors", keys.missing_keys),
        ("has tensors that the model lacks", keys.unexpected_keys),
    ):
        if names:
            raise ConfigError(
                f"{adapter / WEIGHTS}: {problem}, such as {names[0]}. Restore it from a copy, or "
                "retrain the adapter"
            )


def recorded_digests(folder: Path) -> dict[str, Any]:
    """Returns `digests` of the folder's `training.json`; empty if there are none.

    Raises:
        ConfigError: If the record is damaged.
    """
    try:
        digests = object_inside(folder, TRAINING_RECORD).get("digests")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder / TRAINING_RECORD}: cannot be read ({error}). Restore it from a copy"
        ) from error
    return digests if isinstance(digests, dict) else {}


def _check_recorded_hash(adapter: Path) -> None:
    """Compares weights and configuration with `digests` in `training.json`, if their SHA-256 is
    recorded there.

    The record of `adapter` is next to it; the record of `chain/0` is next to `chain`.

    Raises:
        ConfigError: If the hashes differ, or the record is damaged.
    """
    for folder in adapter.parents[:2]:
        digests, name = recorded_digests(folder), adapter.relative_to(folder).as_posix()
        for key, file in ((name, WEIGHTS), (f"{name}/{ADAPTER_CONFIG}", ADAPTER_CONFIG)):
            recorded = digests.get(key)
            if recorded is not None and recorded != file_hash(adapter / file, sha256=True):
                raise ConfigError(
                    f"{adapter / file}: is damaged or was replaced, because its SHA-256 is not the "
                    f"one in {folder / TRAINING_RECORD}. Restore it from a copy, or retrain the "
                    "adapter"
                )


def recorded_hashes(folder: Path, name: str) -> dict[str, str]:
    """Returns the SHA-256 of an adapter's files, under their names in `digests`."""
    adapter = folder / name
    return {
        name: file_hash(adapter / WEIGHTS, sha256=True),
        f"{name}/{ADAPTER_CONFIG}": file_hash(adapter / ADAPTER_CONFIG, sha256=True),
    }


def _reject_absurd(config: dict[str, Any]) -> None:
    """Rejects unsafe values that PEFT would accept without a check.

    Raises:
        ValueError: If the configuration has such a value.
    """
    if config.get("auto_map"):
        raise ValueError("`auto_map` names code, which is never run")
    if (kind := config.get("peft_type")) in PROMPT_KINDS:
        raise ValueError(f"{kind} adds to prompts instead of weights and cannot be merged")
    pattern = config.get("rank_pattern") or {}
    if not isinstance(pattern, dict):
        raise ValueError("`rank_pattern` is not an object")
    for rank in (config.get("r"), *pattern.values()):
        if rank is not None and (type(rank) is not int or not 1 <= rank <= HIGHEST_RANK):
            raise ValueError(
                f"rank {str(rank)[:40]} is not a whole number from 1 to {HIGHEST_RANK}"
            )
