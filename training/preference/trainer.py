"""TRL's `DPOTrainer` on tokenised pairs: side by side with full prompts, or packed.

There are two differences from TRL. Pairs come as the embedded engine's token ids (TRL's own
tokenisation would add the template's line break after the end of the turn, which no policy
samples). And sequences are never cut. If packed, it also gets the reference's log-probabilities
with the pairs, and siblings follow each other (`training.samplers`); loss, gradients and metrics
are TRL's.

TRL takes seconds to import, so this module is imported where a training begins.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from datasets import Dataset
from trl import DPOConfig, DPOTrainer

from training.arguments import lora_config, one_device
from training.packing import StepTokens, enable_packed_forward, packed_batch, pad_id
from training.preference.pairs import PreferenceTokens
from training.samplers import LengthOrder, StateOrder
from training.settings import DpoSettings, TrainingSettings


def pair_trainer(
    model: Any,
    tokenizer: Any,
    pairs: Sequence[PreferenceTokens],
    training: TrainingSettings,
    arguments: Mapping[str, Any],
) -> Any:
    """Returns a trainer around a plain `model` (the start), with a new adapter on it if any.

    Args:
        arguments: See `training.arguments.trainer_arguments`.

    Raises:
        ConfigError: If the model cannot read packed pairs, and `training.packed` is set.
    """
    settings = training.dpo
    configuration = DPOConfig(
        **arguments,
        beta=settings.beta,
        **_losses(settings),
        max_length=None,  # never cut: longer pairs are left out earlier
        # Without an adapter, TRL would otherwise load a second model as the reference.
        precompute_ref_log_probs=training.lora is None,
    )
    rows = [
        {"prompt_ids": p.prompt, "chosen_ids": p.chosen, "rejected_ids": p.rejected, "length": n}
        for p, n in ((p, len(p)) for p in pairs)
    ]
    given: dict[str, Any] = {}
    one_device(configuration)
    if training.packed:
        enable_packed_forward(model)
        given["data_collator"] = PackedPairs(pad_id(tokenizer))
    return PairTrainer(
        packed=training.packed,
        reference_free=settings.reference == "none",
        model=model,
        args=configuration,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=None if training.lora is None else lora_config(training.lora),
        **given,
    )


def _losses(settings: DpoSettings) -> dict[str, Any]:
    """Returns the preference loss, and the chosen step's own loss if it has a weight."""
    if not settings.sft_weight:
        return {"loss_type": ["sigmoid"]}
    return {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, settings.sft_weight]}


def set_reference_logps(
    trainer: Any, pairs: Sequence[PreferenceTokens], start: Mapping[StepTokens, float]
) -> None:
    """Passes the start's log-probabilities to `trainer`, so that it does not compute them.

    Args:
        pairs: Training pairs of the trainer, in order.
        start: Log-probabilities of all steps under the start, in nats.
    """
    columns = zip(*([start[row] for row in pair.rows] for pair in pairs), strict=True)
    for name, column in zip(("ref_chosen_logps", "ref_rejected_logps"), columns, strict=True):
        trainer.train_dataset = trainer.train_dataset.add_column(name, list(column))
    trainer.precompute_ref_logps = True


class PackedPairs:
    """Rows of a dataset as one packed batch: all chosen steps, then all rejected ones."""

    def __init__(self, pad: int) -> None:
        self.pad = pad

    def __call__(self, pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Returns a packed batch (`training.packing`).

        If the rows have reference log-probabilities, adds them as `ref_…_logps` of shape (pairs,).
        """
        rows = [
            StepTokens(tuple(pair["prompt_ids"]), tuple(pair[f"{side}_ids"]))
            for side in ("chosen", "rejected")
            for pair in pairs
        ]
        reference = {
            name: torch.tensor([pair[name] for pair in pairs])
            for name in ("ref_chosen_logps", "ref_rejected_logps")
            if name in pairs[0]
        }
        return packed_batch(rows, self.pad) | reference


class PairTrainer(DPOTrainer):  # type: ignore[misc]
    """DPO on tokenised pairs; logs the distance to the start."""

    _total_train_tokens: int  # of TRL

    def __init__(self, *, packed: bool, reference_free: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.packed = packed
        self.reference_free = reference_free
        if reference_free:
            # TRL lacks this loss; reference log-probabilities of 0 give it.
            self.precompute_ref_logps = True

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        return dataset

    def _precompute_ref_logps(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        return dataset  # `set_reference_logps` adds them

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        rows = self.train_dataset
        if self.packed:
            return StateOrder(list(map(tuple, rows["prompt_ids"])), self.args.seed)
        batch_size = self.args.train_batch_size * self.args.gradient_accumulation_steps
        return LengthOrder(rows["length"], batch_size, self.args.seed)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        given = inputs
        # TRL counts from 0 after a resume; the checkpoint keeps the trainer's own count.
        self._total_train_tokens = max(self._total_train_tokens, self.state.num_input_tokens_seen)
        if self.reference_free:
            nothing = inputs["input_ids"].new_zeros(len(inputs["input_ids"]) // 2).float()
            inputs = inputs | {"ref_chosen_logps": nothing, "ref_rejected_logps": nothing}
        if self.packed:
            # TRL counts the rows, but the model reads the tree.
            self._total_train_tokens += int(
                inputs["tree_tokens"].numel() - inputs["attention_mask"].sum()
            )
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        self.state.num_input_tokens_seen = self._total_train_tokens
        self._metrics["train"]["kl"].append(self._divergence(model, given))
        return loss

    def _divergence(self, model: Any, inputs: Any) -> float:
        """Returns the mean log-ratio of the start to the policy on this batch, in nats per
        step.
        """
        # TRL logs the implicit rewards r = beta * (logp_policy - logp_ref), averaged per batch
        # and side. So -(r_chosen + r_rejected) / (2 * beta) is the mean of logp_ref -
        # logp_policy over both sides: the k1 estimate of KL(start || policy). Reading the log
        # avoids a second forward pass. Without a reference TRL's rewards are not relative to
        # the start, so its log-probabilities are needed.
        logged = self._metrics["train"]
        if self.reference_free:
            start = self._start_logps(model, inputs)
            return (start - float(logged["logps/chosen"][-1] + logged["logps/rejected"][-1])) / 2
        rewards = logged["rewards/chosen"][-1] + logged["rewards/rejected"][-1]
        return float(-rewards / (2 * self.beta))

    def _start_logps(self, model: Any, inputs: Any) -> float:
        """Returns the mean of the chosen steps plus the mean of the rejected ones."""
        if "ref_chosen_logps" in inputs:
            return float(inputs["ref_chosen_logps"].mean() + inputs["ref_rejected_logps"].mean())
        return sum(float(logps.mean()) for logps in self.compute_ref_log_probs(model, inputs))
