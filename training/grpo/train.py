"""Reinforcement learning on outcome rewards: GRPO, RLOO and REINFORCE++.

The current policy draws each batch of rollouts: first the engine gets its weights, and a canary
checks that they arrived (`training.grpo.canary`). `training.grpo.trainer` then updates the policy.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from branchwise.base import to_uint32
from branchwise.weights import load_adapter

from ..arguments import check_has_lora, lora_config
from ..training_run import TrainingReport, TrainingRun
from .rollouts import RolloutSource


def train_grpo(
    run: TrainingRun,
    source: RolloutSource,
    *,
    temperature: float,
    deciding: Sequence[str],
    begin_with: Path | None = None,
) -> TrainingReport:
    """Trains a LoRA on the start (merged in float32) and writes it to the target.

    A stopped training resumes from its last checkpoint. The rollouts drawn after it are in the
    ledger, so the curve is the same as without the stop.

    Args:
        run: Settings, target folder, and start: also the reference of the divergence.
        source: Draws the rollouts.
        temperature: Sampling temperature of the rollouts, above 0.
        deciding: Further settings that affect the training: questions, rewards, protocol.
        begin_with: Adapter of an earlier stage from the same start, to continue with.

    Raises:
        ConfigError: If the model cannot read packed rows (use `training.packed: false`).
        StorageError: See `TrainingRun.train`.
        TrainingError: If gradients were not finite three times in a row.
    """
    trainer = grpo_trainer(run, source, temperature, begin_with)
    return run.train(trainer, list(deciding), before_filtering=len(deciding))


def grpo_trainer(
    run: TrainingRun, source: RolloutSource, temperature: float, begin_with: Path | None = None
) -> Any:
    """Returns the trainer of a run: its start with a new adapter.

    Raises:
        ConfigError: If the model cannot read packed rows, and `training.packed` is set.
    """
    from peft import get_peft_model
    from transformers import TrainingArguments, set_seed
    from trl.trainer.utils import add_fused_lm_head

    from .trainer import GrpoTrainer

    settings = run.training.grpo
    model, tokenizer = run.load_start()
    steps = settings.batches * settings.updates
    configuration = run.configuration(
        TrainingArguments,
        save_steps=settings.save_every * settings.updates,
        max_steps=steps,
        per_device_train_batch_size=1,
    )
    set_seed(to_uint32(run.seed))  # before the adapter, whose first weights are random
    add_fused_lm_head(model, temperature=temperature, outputs=("log_probs", "entropy"))
    policy = get_peft_model(model, lora_config(check_has_lora(run.training)))
    if begin_with is not None:
        load_adapter(policy, begin_with)
    return GrpoTrainer(
        run,
        source,
        model=policy,
        args=configuration,
        train_dataset=range(steps),  # collect() draws the rollouts
        processing_class=tokenizer,
    )
