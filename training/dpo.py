"""Direct preference optimisation on sibling pairs.

The start is merged in float32 and a new LoRA trained on top, so that the reference (the model with
its adapter off) is the policy the run began with; at step 0 both agree and the loss is ln 2.
`reference: none` is ReasonRAG's eq. 3 as printed, without a reference: then it is not.

TRL's `DPOTrainer` does the training, with two differences: pairs reach it as the token ids that
the embedded engine is asked with (its own tokenisation would add the template's line break behind
the end of the turn, which no policy samples), and nothing is ever cut: what does not fit is
counted, left out, and above a share refused.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from storage.errors import ConfigError
from storage.records import Pair
from training.arguments import lora_config
from training.course import Course, log_line
from training.curves import Say
from training.preferences import PreferenceTokens, describe_lengths, tokenise_pairs
from training.report import TrainingReport
from training.settings import DpoSettings


def train_dpo(
    pairs: Sequence[Pair],
    settings: DpoSettings,
    *,
    start: str,
    target: Path,
    seed: int,
    resume: bool = False,
    say: Say = log_line,
    data: Mapping[str, Any] | None = None,
) -> TrainingReport:
    """Train a LoRA on top of `start` and write it to `target`.

    `metrics.jsonl` then has a line a step: loss, margin (of the implicit rewards, in nats times
    beta), accuracy (share of pairs whose chosen step gained more), log-probabilities of chosen
    and rejected (sums over the step's tokens), and `kl`: minus the mean log-ratio of all chosen
    and rejected steps to the start. They were drawn from the start, so this is the estimate k1 of
    KL(start ‖ policy) in nats a step, biased by which siblings became pairs; it may be negative.

    Args:
        pairs: rows of the pairs parquet.
        settings: see `training.settings.DpoSettings`.
        start: "packaged" or a model folder: the policy that the pairs were drawn from.
        target: gets `adapter/`, `chain/`, `metrics.jsonl`, `training.json`, `checkpoints/`.
        seed: of initialisation and order.
        resume: refuse to replace another training's checkpoints; see `Course`.
        say: told how long the pairs are, before training.
        data: where the examples come from, as JSON; goes into `training.json`.

    Raises:
        ConfigError: no pairs, or too many do not fit into `max_length`.
        StorageError: with `resume`, the target's checkpoints are not this training's own.
    """
    if not pairs:
        raise ConfigError("there is no pair to train on")
    course = Course("dpo", settings, start, target, seed, resume, say, data)
    model, tokenizer = course.load_start()
    tokens = tokenise_pairs(pairs, tokenizer)
    lengths = describe_lengths(tokens)
    say(lengths)
    tokens = course.fitting(tokens)
    trainer = _trainer(model, tokenizer, tokens, settings, course.arguments())
    return course.train(trainer, tokens, given=len(pairs), lengths=lengths)


def _trainer(
    model: Any,
    tokenizer: Any,
    tokens: Sequence[PreferenceTokens],
    settings: DpoSettings,
    arguments: dict[str, Any],
) -> Any:
    """TRL's trainer around a plain `model` (the start), with a new adapter on it."""
    from datasets import Dataset
    from trl import DPOConfig

    configuration = DPOConfig(
        **arguments,
        beta=settings.beta,
        loss_type=[settings.loss],
        max_length=None,  # nothing is cut: what is too long was left out before
        length_column_name="length",
    )
    rows = [
        {"prompt_ids": t.prompt, "chosen_ids": t.chosen, "rejected_ids": t.rejected, "length": n}
        for t, n in ((t, len(t)) for t in tokens)
    ]
    return _pair_trainer(reference_free=settings.reference == "none")(
        model=model,
        args=configuration,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=lora_config(settings.lora),
    )


def _pair_trainer(reference_free: bool) -> Any:
    """The class, made here because TRL takes seconds to import."""
    from trl import DPOTrainer

    class PairTrainer(DPOTrainer):  # type: ignore[misc]
        """DPO on pairs that are tokenised already; logs the distance to the start."""

        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            if reference_free:
                # TRL has no such loss; reference log-probabilities of 0 make it one.
                self.precompute_ref_logps = True

        def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
            return dataset

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if reference_free:
                nothing = inputs["input_ids"].new_zeros(len(inputs["input_ids"]) // 2).float()
                inputs = inputs | {"ref_chosen_logps": nothing, "ref_rejected_logps": nothing}
            loss = super().compute_loss(model, inputs, *args, **kwargs)
            self._metrics["train"]["kl"].append(self._divergence(model, inputs))
            return loss

        def _divergence(self, model: Any, inputs: Any) -> float:
            """Mean log-ratio of the start to the policy on this batch, in nats a step."""
            logged = self._metrics["train"]
            if reference_free:
                start = sum(
                    float(logps.mean()) for logps in self.compute_ref_log_probs(model, inputs)
                )
                return (
                    start - float(logged["logps/chosen"][-1] + logged["logps/rejected"][-1])
                ) / 2
            rewards = logged["rewards/chosen"][-1] + logged["rewards/rejected"][-1]
            return float(-rewards / (2 * self.beta))

    return PairTrainer
