"""TRL's `DPOTrainer` on tokenised pairs: side by side with full prompts, or packed.

There are two differences from TRL. Pairs come as the embedded engine's token ids (TRL's own
tokenisation would add the template's line break after the end of the turn, which no policy
samples). And sequences are never cut. If packed, it also gets the reference's log-probabilities
with the pairs, and siblings follow each other (`training.samplers`); loss, gradients and metrics
are TRL's.

TRL takes seconds to import, so this module is imported when a training begins.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from datasets import Dataset
from trl import DPOConfig, DPOTrainer

from ..arguments import lora_config
from ..packing import StepTokens, batch_of
from ..samplers import ExampleOrder
from ..training_run import TrainingRun
from ..warm_up import WarmUpTrainer
from .preference_tokens import PreferenceTokens


class PairTrainer(WarmUpTrainer, DPOTrainer):  # type: ignore[misc]
    """DPO on tokenised pairs; logs the distance to the start.

    Args:
        model: The start as a plain model; gets a new adapter, if the training has one.
        pairs: Training pairs.
        run: Its settings.
    """

    _total_train_tokens: int  # of TRL

    def __init__(
        self, model: Any, tokenizer: Any, pairs: Sequence[PreferenceTokens], run: TrainingRun
    ) -> None:
        training, settings = run.training, run.training.dpo
        self.pairs = pairs
        self.packed = training.packed
        self.start_logps: dict[StepTokens, float] = {}
        self.reference_free = settings.reference == "none"
        weighted = {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, settings.sft_weight]}
        super().__init__(
            model=model,
            args=run.configuration(
                DPOConfig,
                beta=settings.beta,
                **(weighted if settings.sft_weight else {"loss_type": ["sigmoid"]}),
                max_length=None,  # never cut: longer pairs are left out earlier
                # Without an adapter, TRL would otherwise load a second model as the reference.
                precompute_ref_log_probs=training.lora is None,
            ),
            data_collator=self._batch,
            train_dataset=Dataset.from_dict({"number": range(len(pairs))}),
            processing_class=tokenizer,
            peft_config=training.lora and lora_config(training.lora),
        )
        if self.reference_free:
            # TRL lacks this loss; reference log-probabilities of 0 give it.
            self.precompute_ref_logps = True

    def use_start_logps(self, logps: Mapping[StepTokens, float]) -> None:
        """Takes the start's log-probabilities, in nats, instead of computing them for each batch.

        Args:
            logps: Log-probabilities of all steps of the pairs.
        """
        self.start_logps |= logps
        self.precompute_ref_logps = True

    def _prepare_dataset(self, *args: Any, **kwargs: Any) -> Any:
        return self.pairs  # TRL takes a `Dataset` only

    def _precompute_ref_logps(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        return dataset  # `use_start_logps` sets them

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        states = [pair.prompt for pair in self.pairs] if self.packed else None
        return ExampleOrder(self.args, list(map(len, self.pairs)), states)

    def _batch(self, pairs: Sequence[PreferenceTokens]) -> dict[str, Any]:
        """Returns a batch of all chosen steps, then all rejected ones (`training.packing`).

        If the start's log-probabilities are known, adds them as `ref_…_logps` of shape (pairs,).
        """
        sides = {
            "chosen": [pair.rows[0] for pair in pairs],
            "rejected": [pair.rows[1] for pair in pairs],
        }
        reference = {
            f"ref_{side}_logps": torch.tensor([self.start_logps[step] for step in steps])
            for side, steps in sides.items()
            if self.start_logps
        }
        steps = sides["chosen"] + sides["rejected"]
        return batch_of(steps, self.processing_class, packed=self.packed) | reference

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        batch = inputs
        # TRL counts from 0 after a resume; the checkpoint keeps the trainer's own count.
        self._total_train_tokens = max(self._total_train_tokens, self.state.num_input_tokens_seen)
        if self.reference_free:
            zeros = inputs["input_ids"].new_zeros(len(inputs["input_ids"]) // 2).float()
            inputs = inputs | {"ref_chosen_logps": zeros, "ref_rejected_logps": zeros}
        if self.packed:
            # TRL counts the rows, but the model reads the tree.
            self._total_train_tokens += int(
                inputs["tree_tokens"].numel() - inputs["attention_mask"].sum()
            )
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        self.state.num_input_tokens_seen = self._total_train_tokens
        self._metrics["train"]["kl"].append(self._divergence(batch))
        return loss

    def _divergence(self, inputs: Any) -> float:
        """Returns the mean log-ratio of the start to the policy on this batch: nats per step."""
        # TRL logs the implicit rewards r = beta * (logp_policy - logp_ref), averaged per batch
        # and side. So -(r_chosen + r_rejected) / (2 * beta) is the mean of logp_ref -
        # logp_policy over both sides: the k1 estimate of KL(start || policy). Reading the log
        # avoids a second forward pass. Without a reference TRL's rewards are not relative to
        # the start, so its log-probabilities are needed.
        logged = self._metrics["train"]
        if self.reference_free:
            start = float(inputs["ref_chosen_logps"].mean() + inputs["ref_rejected_logps"].mean())
            return (start - float(logged["logps/chosen"][-1] + logged["logps/rejected"][-1])) / 2
        rewards = logged["rewards/chosen"][-1] + logged["rewards/rejected"][-1]
        return float(-rewards / (2 * self.beta))
