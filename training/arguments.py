"""Configuration shared by all trainers."""

import contextlib
import ctypes
import os
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from branchwise.base import ConfigError, to_uint32

from .settings import ExampleSettings, LoraSettings, TrainingKind, TrainingSettings

# Names of glibc's `mallopt` settings (malloc.h).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

SAVE_STEPS = 25
"""Steps between checkpoints of trainings on fixed examples."""


def silence_libraries() -> None:
    """Turns off telemetry and the trainers' notices; call it before you import them."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    warnings.filterwarnings("ignore", message="Could not find a config file", module="peft")
    # Let glibc keep freed blocks. A step on a CPU allocates gigabytes of activations. Returning
    # them to the system and faulting them in for the next step costs a third of its time.
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def trainer_arguments(
    training: TrainingSettings, kind: TrainingKind, checkpoints: Path, seed: int
) -> dict[str, Any]:
    """Returns keyword arguments of a Hugging Face `TrainingArguments`.

    Raises:
        ConfigError: If a reporter of `report_to` is not installed.
    """
    import torch

    for reporter in training.report_to:
        if find_spec(reporter) is None:
            raise ConfigError(
                f"training.report_to: {reporter} is not installed. Run `pip install {reporter}`"
            )
    settings = training.of(kind)
    batches: dict[str, Any] = {}
    if isinstance(settings, ExampleSettings):
        batches = {
            "per_device_train_batch_size": settings.micro_batch,
            "gradient_accumulation_steps": settings.batch_size // settings.micro_batch,
            "num_train_epochs": settings.epochs,
            "save_steps": SAVE_STEPS,
            "lr_scheduler_type": settings.schedule,
            "warmup_steps": settings.warmup,  # a share of all steps, because it is below 1
        }
    accelerated = torch.cuda.is_available()
    return {
        "output_dir": str(checkpoints),
        "learning_rate": settings.lr,
        "lr_scheduler_type": "linear",
        "weight_decay": 0.0,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # would show a loss that is not finite as 0
        "save_strategy": "steps",
        "save_total_limit": 2,
        "report_to": list(training.report_to) or "none",
        "seed": to_uint32(seed),
        "data_seed": to_uint32(seed),
        "use_cpu": not accelerated,
        "bf16": in_bfloat16(training.precision),
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_pin_memory": accelerated,
        **batches,
    }


def in_bfloat16(precision: str) -> bool:
    """Returns whether layers compute in bfloat16; see `training.settings.TrainingSettings`."""
    import torch

    if precision != "auto":
        return precision == "bfloat16"
    if torch.cuda.is_available():
        return True
    able = torch.cpu.get_capabilities()
    # Intel multiplies bfloat16 fast in AMX alone; its AVX512-BF16 has half of float32's pace.
    fast = able.get("avx512_bf16") and "Intel" not in str(able.get("cpu_name"))
    return bool(able.get("amx_bf16") or fast)


def check_has_lora(training: TrainingSettings) -> LoraSettings:
    """Returns the adapter's settings, for a training that cannot train all weights.

    Raises:
        ConfigError: If `training.lora` is not set.
    """
    if training.lora is None:
        raise ConfigError(
            "training.lora is null, but outcome RL trains an adapter, which its engine loads after "
            "every batch. Set training.lora, such as {r: 16}"
        )
    return training.lora


def lora_config(lora: LoraSettings) -> Any:
    """Returns a PEFT configuration for all linear layers except the output layer."""
    from peft import LoraConfig

    return LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
