"""Reinforcement learning on outcome rewards: GRPO, RLOO and REINFORCE++.

The current policy draws each batch of rollouts: first the engine gets its weights, and a canary
checks that they arrived (`training.grpo.canary`). `training.grpo.trainer` then updates the policy.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from base.seeds import to_uint32
from base.text import Log
from training.arguments import check_has_lora, lora_config, one_device
from training.grpo.rollouts import RolloutSource
from training.report import TrainingReport
from training.settings import TrainingSettings
from training.training_run import TrainingRun, log_line
from training.tree_attention import enable_packed_forward
from weights.adapter_chain import load_adapter


def train_grpo(
    source: RolloutSource,
    training: TrainingSettings,
    *,
    start: str,
    target: Path,
    seed: int,
    temperature: float,
    deciding: Sequence[str],
    begin_with: Path | None = None,
    resume: bool = False,
    log: Log = log_line,
    data: Mapping[str, Any] | None = None,
) -> TrainingReport:
    """Trains a LoRA on `start` (merged in float32) and writes it to `target`.

    A stopped training resumes from its last checkpoint. The rollouts drawn after it are in the
    ledger, so the curve is the same as without the stop.

    Args:
        source: Draws the rollouts.
        training: Settings of `training.grpo`, and those that all trainings share.
        start: "packaged" or a model folder; also the reference of the divergence.
        target: Folder for `adapter/`, `chain/`, `metrics.jsonl`, `training.json`, `checkpoints/`.
        seed: Random seed of initialisation and sampling.
        temperature: Sampling temperature of the rollouts, above 0.
        deciding: Further settings that affect the training: questions, rewards, protocol.
        begin_with: Adapter of an earlier stage from the same start, to continue with.
        resume: Whether to fail if `target` has another training's checkpoints. If False, they are
            replaced. This training's own checkpoints are resumed in both cases.
        log: Callback for status messages.
        data: Origin of the questions, as JSON; written to `training.json`.

    Raises:
        ConfigError: If the model cannot read packed rows (use `training.packed: false`).
        StorageError: If `resume` is set and the target's checkpoints belong to another training.
        TrainingError: If gradients were not finite three times in a row.
    """
    course = TrainingRun("grpo", training, start, target, seed, resume, log, data)
    model, tokenizer = course.load_start()
    trainer = grpo_trainer(
        model, tokenizer, source, training, course.arguments(), seed, temperature, begin_with, log
    )
    return course.train(trainer, list(deciding), given=len(deciding))


def grpo_trainer(
    model: Any,
    tokenizer: Any,
    source: RolloutSource,
    training: TrainingSettings,
    arguments: Mapping[str, Any],
    seed: int,
    temperature: float,
    begin_with: Path | None = None,
    log: Log = log_line,
) -> Any:
    """Returns a trainer around a plain `model` (the start), with a new adapter on it.

    Args:
        arguments: See `training.arguments.trainer_arguments`.

    Raises:
        ConfigError: If the model cannot read packed rows, and `training.packed` is set.
    """
    from peft import get_peft_model
    from transformers import TrainingArguments, set_seed
    from trl.trainer.utils import add_fused_lm_head

    from training.grpo.trainer import GrpoTrainer

    settings = training.grpo
    steps = settings.batches * settings.updates
    configuration = TrainingArguments(
        **{
            **arguments,
            "save_steps": settings.save_every * settings.updates,
            "max_steps": steps,
            "per_device_train_batch_size": 1,
        }
    )
    if training.packed:
        enable_packed_forward(model)
    one_device(configuration)
    set_seed(to_uint32(seed))  # before the adapter, whose first weights are random
    add_fused_lm_head(model, temperature=temperature, outputs=("log_probs", "entropy"))
    policy = get_peft_model(model, lora_config(check_has_lora(training)))
    if begin_with is not None:
        load_adapter(policy, begin_with)
    return GrpoTrainer(
        model=policy,
        args=configuration,
        train_dataset=[{"step": step} for step in range(steps)],  # collect() draws the rollouts
        processing_class=tokenizer,
        data_collator=lambda steps: steps[0],
        source=source,
        settings=settings,
        packed=training.packed,
        seed=seed,
        log=log,
    )
