"""Direct preference optimisation on sibling pairs.

The start is merged in float32 and a new LoRA is trained on it. So the reference (the model with its
adapter off) is the policy that the run began with; at step 0 both agree, and the loss is ln 2. That
is not so with `reference: none`, which is ReasonRAG's eq. 3 as printed, without a reference. If all
weights are trained (`training.lora` not set), there is no second model either: the start's
log-probabilities are computed before the first step.

TRL's `DPOTrainer` does the training (`training.preference.trainer`). Most of the work is the
prompt, which siblings share, so it is read once for all of them (`training.packing`). The
reference never changes, and the arms and seeds of a study train on the same steps from the same
start. So the start's log-probabilities are computed once and cached under a hash of the start and
of all steps with their prompts, which depends neither on their order nor on which step of a pair is
chosen. Pairs that are too long are counted and left out; above a share of them, the training fails.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from branchwise.base import ConfigError
from branchwise.storage import cache_section, get_or_build
from branchwise.types import Pair
from branchwise.weights import policy_digest, policy_files

from ..packing import StepTokens, step_logps
from ..training_run import TrainingReport, TrainingRun
from .preference_tokens import HoldoutScore, score, split_holdout, tokenise_pairs

_VERSION = "branchwise-reference-1"
_LOGPS = "logps.npy"


def train_dpo(
    run: TrainingRun, pairs: Sequence[Pair], *, stops: tuple[str, ...] = ()
) -> TrainingReport:
    """Trains a LoRA on the start, or all its weights, and writes it to the target.

    `metrics.jsonl` then has a line per step: loss, margin (of the implicit rewards, in nats times
    beta), accuracy (share of pairs whose chosen step gained more), log-probabilities of chosen
    and rejected (sums over the step's tokens), and `kl`: minus the mean log-ratio of all chosen
    and rejected steps to the start. The start drew these steps, so `kl` is the estimate k1 of
    KL(start ‖ policy) in nats per step, biased by the selection of pairs; it may be negative.
    (Pairs of another policy, `allow_off_policy_pairs`, do not allow this estimate.)
    Pairs of held-out questions are scored after the last step.

    Args:
        run: Settings, target folder, and start: the policy that the pairs were drawn from.
        pairs: Rows of the pairs parquet.
        stops: Strings that end a call of the pairs' protocol within its turn.

    Raises:
        ConfigError: If `pairs` is empty, too many are longer than `max_length`, all are held out,
            or the model cannot read packed pairs (use `training.packed: false`).
        StorageError: See `TrainingRun.train`.
    """
    if not pairs:
        raise ConfigError("the list of training pairs is empty; annotate more questions")
    training = run.training
    model, tokenizer = run.load_start()
    from .trainer import PairTrainer

    tokens = tokenise_pairs(pairs, tokenizer, stops)
    fitting = [tokens[i] for i in run.fitting([len(pair) for pair in tokens])]
    trained, held_out = split_holdout(fitting, training.dpo.holdout, run.seed)
    trainer = PairTrainer(model, tokenizer, trained, run)

    def compute(rows: Sequence[StepTokens]) -> dict[StepTokens, float]:
        # Without an adapter, the trainer's model is the start until the training begins.
        with nullcontext() if training.lora is None else trainer.model.disable_adapter():
            return step_logps(trainer, rows)

    # An unpacked LoRA reads the reference from the model with its adapter off, step by step.
    step_by_step = training.lora and not training.packed and training.dpo.reference == "start"
    rows = [row for pair in (held_out if step_by_step else fitting) for row in pair.rows]
    start = policy_digest(policy_files(run.start), "f32")
    precision = trainer.accelerator.mixed_precision
    reference = reference_logps(rows, f"{start} {precision}", compute, run.log) if rows else {}
    if not step_by_step:
        trainer.use_start_logps(reference)

    def scored() -> HoldoutScore | None:
        policy = step_logps(trainer, [row for pair in held_out for row in pair.rows])
        return score(held_out, policy, reference, training.dpo.beta) if held_out else None

    return run.train(trainer, trained, len(pairs) - len(held_out), scored)


def reference_logps(
    rows: Iterable[StepTokens],
    start: str,
    compute: Callable[[Sequence[StepTokens]], Mapping[StepTokens, float]],
    log: Callable[[str], None],
) -> dict[StepTokens, float]:
    """Returns the log-probability of each step under the start: nats, summed over its tokens.

    Args:
        rows: Steps with their prompts; equal ones count once.
        start: Digest of the start and of the precision that it runs in.
        compute: Function that computes them with the start.
        log: Callback for messages: computed, read from the cache, or damaged.

    Raises:
        ConfigError: If other users can write to the cache.
        StorageError: If the cache cannot be written.
    """
    ordered = sorted(set(rows))
    key = hashlib.blake2b(f"{_VERSION}\n{start}\n".encode(), digest_size=16)
    for row in ordered:
        key.update(json.dumps(row).encode() + b"\n")
    origin = "read from"

    def build(new: Path) -> None:
        nonlocal origin
        logps = compute(ordered)
        np.save(new / _LOGPS, np.array([logps[row] for row in ordered], dtype=np.float64))
        origin = "computed, stored in"

    entry = get_or_build(cache_section("reference") / key.hexdigest(), build, log)
    log(f"reference: {len(ordered)} steps {origin} {entry}")
    return dict(zip(ordered, np.load(entry / _LOGPS).tolist(), strict=True))
