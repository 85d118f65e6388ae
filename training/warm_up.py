"""A warm-up of the learning rate whose first step already learns.

transformers' schedules begin at a rate of 0, so a training of one step would change nothing.
"""

from collections.abc import Callable
from typing import Any

from transformers import Trainer


class WarmUpTrainer(Trainer):  # type: ignore[misc]
    """A `Trainer` whose rate rises from 1 / (w + 1) of its peak, over w steps of warm-up."""

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        steps = self.args.get_warmup_steps(num_training_steps)
        scheduler.lr_lambdas = [_risen(share, steps) for share in scheduler.lr_lambdas]
        rates = [
            base * share(0)
            for base, share in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
        ]
        for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        scheduler._last_lr = rates
        return scheduler


def _risen(share: Callable[[int], float], warm_up: int) -> Callable[[int], float]:
    """Returns a schedule's share of the peak rate by step, above 0 during the warm-up."""
    return lambda step: (step + 1) / (warm_up + 1) if step < warm_up else share(step)
