"""Trainer of outcome RL: draws rollouts, then updates the policy.

TRL's `GRPOTrainer` trains on one row per rollout and a fixed number of rollouts per question. Here
a rollout has a row for each policy call, and failed rollouts are left out. So the loop is that of
transformers' `Trainer` with our own small loss (`training.grpo.loss`), whose gradients equal TRL's
on rows that both can express. The output layer is TRL's.

transformers takes seconds to import, so this module is imported when a training begins.
"""

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import fmean
from typing import Any

import torch
from torch.utils.data import SequentialSampler
from transformers import Trainer

from branchwise.base import TrainingError
from branchwise.modeling import prefix_batches

from ..packing import StepTokens, read_steps, token_logps, tokens_read
from ..training_run import TrainingRun
from .batch_metrics import BatchMetrics
from .loss import TokenMeans, advantages_of, clipped_loss, divergence, is_clipped
from .rollouts import RolloutSource, TrainingRow, rows_of, sample_rows

MAX_CONSECUTIVE_NONFINITE = 3
"""Consecutive updates without a finite loss and gradient that stop the training."""

_KL_SAMPLE_CALLS = 8
"""Policy calls per batch from which the metric `kl` is computed if the loss does not compute it."""


class GrpoTrainer(Trainer):  # type: ignore[misc]
    """Draws a batch of rollouts, then makes its updates.

    Attributes:
        updates: Rows of each update of the current batch.
        old_logps: Log-probabilities of the rows' tokens under π_old, the policy before the batch's
            first update (with `ratio: engine` as the engine reports them, with `rollouts: trees`
            under the start). None: the current policy is π_old.
        reference_logps: The same under π_ref, the start; empty if the loss needs none.
        metrics: Metrics for the next line of the curve.
    """

    def __init__(self, run: TrainingRun, source: RolloutSource, **trainer_options: Any) -> None:
        super().__init__(data_collator=lambda steps: {"step": steps[0]}, **trainer_options)
        self.source = source
        self.settings = run.training.grpo
        self.packed = run.training.packed
        self.seed = run.seed
        self.print_line = run.log
        self.updates: list[list[TrainingRow]] = []
        self.old_logps: Mapping[StepTokens, tuple[float, ...]] | None = None
        self.reference_logps: Mapping[StepTokens, tuple[float, ...]] = {}
        self.metrics = BatchMetrics()
        self.consecutive_nonfinite = 0
        self.warned = False

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return SequentialSampler(train_dataset or self.train_dataset)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        number, update_index = divmod(int(inputs["step"]), self.settings.updates)
        if update_index == 0:
            self._begin_batch(number, model)
        model.train()
        return self._learn(model, self.updates[update_index])

    def _begin_batch(self, number: int, model: Any) -> None:
        """Draws a batch of rollouts and splits it into updates."""
        settings, began = self.settings, time.monotonic()
        model.eval()
        batch = self.source.collect(number, model)
        self.metrics = replace(batch.metrics, rollout_s=time.monotonic() - began)
        self._warn_of_missing_answers(number)
        began = time.monotonic()
        log_ratios = None
        if settings.beta and settings.kl_in == "reward":
            log_ratios = self._log_ratios(
                call.tokens for group in batch.groups for rollout in group for call in rollout.calls
            )
        rollouts = advantages_of(batch.groups, settings, log_ratios)
        random.Random(f"updates:{self.seed}:{number}").shuffle(rollouts)
        parts = [rollouts[start :: settings.updates] for start in range(settings.updates)]
        has_kl = settings.beta > 0 and settings.kl_in == "loss"
        rows = [rows_of(part, aggregation=settings.aggregation, has_kl=has_kl) for part in parts]
        fitting = [[r for r in part if len(r.tokens.whole) <= settings.max_length] for part in rows]
        self.updates = [
            sample_rows(part, settings.max_tokens, f"rows:{self.seed}:{number}:{n}")
            for n, part in enumerate(fitting)
        ]
        too_long = self.metrics.too_long = sum(map(len, rows)) - sum(map(len, fitting))
        if too_long:
            self.print_line(
                f"batch {number}: {too_long} calls are left out, because they are longer than "
                f"training.grpo.max_length ({settings.max_length} tokens)"
            )
        elif not any(self.updates):
            self.print_line(f"batch {number}: no group has spread, so nothing was learnt")
        self._compute_logps()
        self.metrics.before_s = time.monotonic() - began

    def _warn_of_missing_answers(self, number: int) -> None:
        """Warns once if the policy unlearns to answer (Search-R1++, arXiv 2602.19526)."""
        rate = self.metrics.answer_rate
        if rate is None or self.warned:
            return
        # A resumed training has the lines of its checkpoint.
        earlier = (line.get("answer_rate") for line in self.state.log_history)
        initial = next((past for past in earlier if past is not None), rate)
        if rate < initial / 2:
            self.print_line(
                f"batch {number}: the policy answers {100 * rate:.0f} % of its rollouts, "
                f"{100 * initial:.0f} % in the first batch. If its reward "
                "does not punish a missing answer, it may be learning not to answer"
            )
            self.warned = True

    def _compute_logps(self) -> None:
        """Computes log-probabilities under policy and start before the first update, if needed."""
        settings = self.settings
        rows = [row for update in self.updates for row in update]
        steps = [row.tokens for row in rows]
        self.old_logps, self.reference_logps = None, {}
        if settings.ratio == "engine":
            self.old_logps = {row.tokens: row.logprobs for row in rows if row.logprobs}
        elif settings.rollouts == "trees":
            self.old_logps = self._start_logps(steps)  # the start drew all trees
        elif settings.updates > 1:
            self.old_logps = self._logps(steps)
        if settings.beta and settings.kl_in == "loss":
            self.reference_logps = self._start_logps(steps)
        elif log_ratios := self._log_ratios(steps[:_KL_SAMPLE_CALLS]):
            self.metrics.kl = fmean(chain(*log_ratios.values()))

    def _log_ratios(self, steps: Iterable[StepTokens]) -> dict[StepTokens, list[float]]:
        distinct = set(steps)
        policy, start = self._logps(distinct), self._start_logps(distinct)
        return {
            step: [p - s for p, s in zip(policy[step], start[step], strict=True)]
            for step in distinct
        }

    def _logps(self, steps: Iterable[StepTokens]) -> dict[StepTokens, tuple[float, ...]]:
        self.model.eval()
        return token_logps(self, steps)

    def _start_logps(self, steps: Iterable[StepTokens]) -> dict[StepTokens, tuple[float, ...]]:
        with self.model.disable_adapter():
            return self._logps(steps)

    def _learn(self, model: Any, update: Sequence[TrainingRow]) -> Any:
        """Adds the gradients of one update, micro-batch by micro-batch."""
        settings, began = self.settings, time.monotonic()
        loss = torch.zeros((), device=self.args.device)
        means = TokenMeans()
        micro_batches = prefix_batches(
            update,
            settings.micro_tokens,
            tokens_of=lambda row: row.tokens.whole,
            shared=self.packed,
        )
        trained_tokens = 0
        for rows in micro_batches:
            trained_tokens += tokens_read([row.tokens for row in rows], packed=self.packed)
            with self.compute_loss_context_manager():
                micro_loss = self._loss(model, rows, means)
            self.accelerator.backward(micro_loss)
            loss += micro_loss.detach()
        self._drop_unsound(model, loss)
        for name, mean in means.means().items():
            setattr(self.metrics, name, mean)
        self.metrics.rows, self.metrics.trained_tokens = len(update), trained_tokens
        self.metrics.train_s = time.monotonic() - began
        return loss

    def _loss(self, model: Any, rows: Sequence[TrainingRow], means: TokenMeans) -> Any:
        settings = self.settings
        tokens = [row.tokens for row in rows]
        sampled_mask, output = read_steps(self, model, tokens)
        logps = output.log_probs[sampled_mask].float()

        def flat(values: Any) -> Any:
            return torch.tensor(list(chain(*values)), device=logps.device)

        advantages = flat(row.advantages for row in rows)
        weights = flat([row.weight] * len(row.advantages) for row in rows)
        old_logps = logps.detach()
        if self.old_logps is not None:
            old_logps = flat(map(self.old_logps.__getitem__, tokens))
        ratio = (logps - old_logps).exp()
        losses = clipped_loss(ratio, advantages, settings.clip)
        if self.reference_logps:
            log_ratio = logps - flat(map(self.reference_logps.__getitem__, tokens))
            losses = losses + settings.beta * divergence(settings.kl, log_ratio)
            means.add("kl", log_ratio)
        means.add("entropy", output.entropy[sampled_mask])
        means.add("clip_share", is_clipped(ratio, advantages, settings.clip).float())
        if settings.ratio == "engine":
            means.add("engine_gap", (logps - old_logps).abs())
        return (losses * weights).sum()

    def _drop_unsound(self, model: Any, loss: Any) -> None:
        """Drops gradients that are not finite, so that they harm neither weights nor Adam."""
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        if bool(torch.isfinite(loss)) and all(bool(g.isfinite().all()) for g in gradients):
            self.consecutive_nonfinite = 0
            return
        model.zero_grad(set_to_none=True)
        loss.zero_()
        self.consecutive_nonfinite += 1
        self.metrics.lost_updates = 1
        self.print_line(
            f"step {self.state.global_step + 1}: loss or gradient is not finite; this "
            "update is left out"
        )
        if self.consecutive_nonfinite >= MAX_CONSECUTIVE_NONFINITE:
            raise TrainingError(
                f"loss or gradient was not finite in {MAX_CONSECUTIVE_NONFINITE} updates in a "
                "row. Lower training.grpo.lr; the same command resumes from the last checkpoint"
            )

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        super().log(logs | self.metrics.line() if "loss" in logs else logs, *args, **kwargs)
        self.metrics = BatchMetrics()
