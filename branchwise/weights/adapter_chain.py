"""Writes a trained policy: a chain of adapters over a base, or merged weights.

Its folder contains the whole chain.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from branchwise.base import ConfigError, atomic_write_json

from .adapters import WEIGHTS, check_adapter, load_tensors
from .model_folders import ADAPTER_CONFIG, path_from
from .policies import PACKAGED, is_packaged, policy_files

CHAIN = "chain"


def copy_chain(start: str, target: Path) -> tuple[str, list[str]]:
    """Copies the adapters of `start` below `target`, lowest first, so that the folder is complete.

    Returns:
        `base` and `chain` for `training.json`: the base of the adapters ("packaged", "hub:…", or a
        path relative to `target`), and their paths relative to `target` ("chain/0", …).

    Raises:
        ConfigError: If `start` has no usable files.
    """
    files = policy_files(start)
    shutil.rmtree(target / CHAIN, ignore_errors=True)
    names = [f"{CHAIN}/{number}" for number in range(len(files.adapters))]
    for name, adapter in zip(names, files.adapters, strict=True):
        (target / name).mkdir(parents=True)
        for file in (WEIGHTS, ADAPTER_CONFIG):  # no other files
            shutil.copyfile(adapter / file, target / name / file)
    if files.hub is not None:
        return files.hub, names
    if is_packaged(files.base):
        return PACKAGED, names
    return path_from(target, files.base), names


def save_adapter(model: Any, target: Path) -> None:
    """Writes the adapter of a PEFT `model` as fp16 safetensors to `target/adapter`.

    Its configuration does not contain the local path of the base; `training.json` names the base.
    Merged weights in `target` are removed, because they were exported from an earlier adapter.
    """
    for weights in target.glob("model*.safetensors*"):
        weights.unlink()
    trained = {name: p.data.half() for name, p in model.named_parameters() if p.requires_grad}
    model.save_pretrained(str(target / "adapter"), state_dict=trained)
    (target / "adapter" / "README.md").unlink(missing_ok=True)
    path = target / "adapter" / ADAPTER_CONFIG
    config = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(config["target_modules"], list):
        config["target_modules"].sort()  # PEFT writes a set, in random order
    atomic_write_json(path, config | {"base_model_name_or_path": None})


def save_weights(model: Any, tokenizer: Any, target: Path) -> None:
    """Writes `model` and its tokenizer as a policy folder with merged weights, as they are.

    An earlier adapter in `target` is removed, because it would count as the policy.
    """
    tokenizer.save_pretrained(str(target))
    model.save_pretrained(str(target))
    for earlier in ("adapter", CHAIN):
        shutil.rmtree(target / earlier, ignore_errors=True)


def load_adapter(model: Any, adapter: Path) -> None:
    """Loads the weights of a stored adapter into a PEFT `model` of the same shape.

    Raises:
        ConfigError: If the adapter is damaged, or its tensors differ in name or shape.
    """
    check_adapter(adapter)
    try:
        load_tensors(model, adapter, trainable=True)
    except RuntimeError as error:
        raise ConfigError(f"adapter {adapter} does not fit training.lora: {error}") from error
