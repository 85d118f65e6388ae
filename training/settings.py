"""Settings of the `training:` block: one class per trainer."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from branchwise.base import NamedBlock, Settings
from branchwise.sources import SetSettings


class LoraSettings(Settings):
    """Low-rank adapter on all linear layers. Unset, `training.lora` trains all weights (SFT and
    DPO): 16 bytes of memory per weight, and merged weights as the result.

    Attributes:
        r: Rank.
        alpha: Scale; the adapter's change is multiplied by alpha / r.
    """

    r: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)


class OptimiserSettings(Settings):
    """Settings of every policy trainer in its own block.

    Attributes:
        lr: Peak learning rate. In outcome RL it falls linearly to 0; on fixed examples `schedule`
            and `warmup` decide.
        max_length: Tokens of the longest example; longer ones are counted and dropped.
    """

    lr: float = Field(gt=0)
    max_length: int = Field(default=1024, ge=32)


class ExampleSettings(OptimiserSettings):
    """Settings of the trainers on fixed examples.

    Attributes:
        epochs: Passes over the examples.
        batch_size: Examples per step.
        micro_batch: Examples in memory at once; larger ones share more prompts.
        schedule: Fall of the learning rate to 0.
        warmup: Share of the steps in which the learning rate first rises linearly; the first step
            has a rate above 0.
    """

    epochs: float = Field(default=1.0, gt=0)
    batch_size: int = Field(default=8, ge=1)
    micro_batch: int = Field(default=8, ge=1)
    schedule: Literal["linear", "cosine"] = "linear"
    warmup: float = Field(default=0.05, ge=0, lt=1)

    def steps(self, examples: int) -> int:
        """Returns the optimiser steps of a training on so many examples."""
        return math.ceil(math.ceil(examples / self.batch_size) * self.epochs)

    @model_validator(mode="after")
    def _whole_micro_batches(self) -> Self:
        if self.batch_size % self.micro_batch:
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of micro_batch {self.micro_batch}"
            )
        return self


class ReadingSettings(Settings):
    """Reading examples: the passage that answers a question, among others that do not.

    Attributes:
        sets: Question sets, as in `data.mix`, whose questions name their passages. Their split is
            `warm`; one whose split is unset is used whole.
        questions: Most questions of all sets together.
        queries: Share of the questions that teach their first query, of those whose query really
            finds the passage.
        grounding: Share of the questions that teach the steps between passages and answer
            (ReasonRAG: to copy the evidence).
        answers: Share of the questions that teach the answer.
        forced: Share of these answers that follow the forced-answer prompt, if the protocol has
            one. The others teach when to stop. With 56 multi-hop traces, a 0.5B policy stopped
            after one search at 0 and searched until its budget ended at 0.9. With 1,519 traces, a
            135M policy searched twice at 0 and at 0.5.
        absent: Share of the questions whose first search does not show their passage, so that the
            policy finds no evidence and searches again. With 0.1, a small policy found none too
            often.
    """

    sets: tuple[SetSettings, ...] = Field(min_length=1)
    questions: int = Field(default=4000, ge=1)
    queries: float = Field(default=0.25, ge=0, le=1)
    grounding: float = Field(default=1.0, ge=0, le=1)
    answers: float = Field(default=1.0, ge=0, le=1)
    forced: float = Field(default=0.0, ge=0, le=1)
    absent: float = Field(default=0.0, ge=0, le=1)


class WarmStartSettings(ExampleSettings):
    """Supervised start on traces built from gold facts, and on reading examples.

    Attributes:
        base: Model to train: "packaged", a model folder, a GGUF file, or `hub:owner/name`.
        questions: Questions of split `warm` of `data` to trace; unanswerable ones give a trace if
            the protocol can refuse. All sets of a mix give the same number. One whose split is
            unset is used whole.
        sets: Further question sets to trace, as in `data.mix`, which must not be empty then. Other
            stages do not use them.
        answer_only: Whether traces of the protocol arena have the answer section only (SFT-direct
            of its table).
        reading: Further examples that teach reading. Unset: none.
    """

    lr: float = Field(default=5e-4, gt=0)
    base: str = "packaged"
    questions: int = Field(default=150, ge=1)
    sets: tuple[SetSettings, ...] = ()
    answer_only: bool = False
    reading: ReadingSettings | None = None


class SftSettings(ExampleSettings):
    """Supervised training (ReasonRAG table 3).

    Attributes:
        examples: `chosen` steps of the pairs, or all steps of `right` trajectories.
    """

    lr: float = Field(default=1e-4, gt=0)
    examples: Literal["chosen", "right"] = "chosen"


class DpoSettings(ExampleSettings):
    """Direct preference optimisation on sibling pairs (ReasonRAG eq. 3).

    Attributes:
        beta: Weight of the divergence from the reference.
        reference: `start` is the run's start policy; `none` is the formula as printed in the paper.
        sft_weight: Weight of the chosen step's mean token loss, added to the preference loss, so
            that its own probability does not fall (Pang et al. 2024, "Iterative reasoning
            preference optimization", eq. 1; there 1).
        holdout: Share of the questions whose pairs are scored after the training instead of used
            for it.
        allow_off_policy_pairs: Whether pairs of another policy may be trained on, as in a second
            training on the same trees. The cost: the compared steps come from that policy, and `kl`
            becomes meaningless.
    """

    lr: float = Field(default=1e-4, gt=0)
    beta: float = Field(default=0.1, gt=0)
    reference: Literal["start", "none"] = "start"
    sft_weight: float = Field(default=0.0, ge=0)
    holdout: float = Field(default=0.0, ge=0, le=0.5)
    allow_off_policy_pairs: bool = False


class GrpoStage(Settings):
    """One of several trainings in a row, each from the end of the one before.

    Attributes:
        name: Name of the stage. Its model is `models/<run>/grpo-<name>`; that of the last stage is
            `models/<run>/grpo`.
        batches: Number of batches; defaults to `training.grpo.batches`.
        rewards: Settings of `rewards` that differ in this stage.
        select: Stage of `branchwise select` whose questions are used, all of them. Unset:
            `questions` of `data`.
    """

    name: str = Field(pattern=r"^[a-z0-9-]+$")
    batches: int | None = Field(default=None, ge=1)
    rewards: dict[str, Any] = Field(default_factory=dict)
    select: str | None = None


class OutcomeRlSettings(OptimiserSettings):
    """Reinforcement learning on outcome rewards.

    Attributes:
        algorithm: `grpo` compares a rollout with its group; `rloo` with the others of its group;
            `reinforce++` gives each token the return that follows it, standardised over the batch.
        questions: Number of questions of `data` to cycle through, in a new order each time.
        batches: Number of batches; each is sampled by the policy trained on all earlier ones.
        batch_questions: Questions per batch.
        group_size: G, rollouts per question.
        updates: Optimiser steps per batch; after the first one, rollouts are off-policy.
        clip: ε of the clipped loss.
        ratio: π_old in the ratio of the clipped loss: the `trainer`'s log-probabilities before the
            batch's first update, or the `engine`'s, which also corrects for its rounding (needs
            `policy.temperature: 1`).
        aggregation: Mean of the loss over the tokens of a `rollout`, then over rollouts (GRPO); or
            over all tokens of the batch (`token`), so that long rollouts count more (DAPO).
        kl: Estimate of the divergence from the start: k1, k2 or k3.
        kl_in: Place of the divergence: subtracted from the `reward` (k1), or added to the `loss`
            (k2, k3).
        beta: Weight of the divergence. 0: it is only reported, from a sample.
        dynamic_sampling: Most extra questions per batch, to replace those whose rollouts all have
            the same reward.
        max_tokens: Most distinct tokens per update, prompts included; above it, policy calls are
            sampled. Unset: no limit.
        micro_tokens: Distinct tokens in memory at once.
        save_every: Batches between checkpoints.
        eval_every: Batches between greedy evaluations on `dev`; 0: never.
        rollouts: `fresh` ones, or the `trees` of `annotate`, whose steps are compared with their
            siblings (`pipelines.train_grpo.tree_groups`). With `trees`, `questions`, `group_size`
            and `dynamic_sampling` have no effect.
        stages: Trainings in a row instead of one, each with a new optimiser; the reference stays
            the start of the first.
    """

    lr: float = Field(default=3e-4, gt=0)
    max_length: int = Field(default=2048, ge=32)
    save_every: int = Field(default=1, ge=1)
    algorithm: Literal["grpo", "rloo", "reinforce++"]
    questions: int = Field(default=200, ge=1)
    batches: int = Field(default=20, ge=1)
    batch_questions: int = Field(default=10, ge=1)
    group_size: int = Field(default=8, ge=2)
    updates: int = Field(default=1, ge=1)
    clip: float = Field(default=0.2, gt=0, lt=1)
    ratio: Literal["trainer", "engine"] = "trainer"
    aggregation: Literal["rollout", "token"] = "rollout"
    kl: Literal["k1", "k2", "k3"] = "k3"
    kl_in: Literal["loss", "reward"] = "loss"
    beta: float = Field(default=0.0, ge=0)
    dynamic_sampling: int = Field(default=0, ge=0)
    max_tokens: int | None = Field(default=16_000, ge=256)
    micro_tokens: int = Field(default=2048, ge=256)
    eval_every: int = Field(default=0, ge=0)
    rollouts: Literal["fresh", "trees"] = "fresh"
    stages: tuple[GrpoStage, ...] = ()

    @model_validator(mode="after")
    def _estimators_fit(self) -> Self:
        if self.kl_in == "loss" and self.kl == "k1":
            raise ValueError(
                "kl: the expected gradient of k1 in the loss is 0, so it does not limit the "
                "divergence. Use k2 or k3, or set kl_in: reward"
            )
        if self.kl_in == "reward" and self.kl != "k1":
            raise ValueError(f"kl: {self.kl} is a loss term. Use k1 in the reward, or kl_in: loss")
        if len({stage.name for stage in self.stages}) < len(self.stages):
            raise ValueError("stages: two have the same name, and would share a model folder")
        if self.updates > self.batch_questions * self.group_size:
            raise ValueError("updates: a batch has fewer rollouts than updates")
        return self


class GrpoSettings(OutcomeRlSettings):
    """GRPO.

    Attributes:
        scale: `std` divides advantages by the group's standard deviation; `none` does not.
    """

    algorithm: Literal["grpo"] = "grpo"
    scale: Literal["std", "none"] = "std"


class RlooSettings(OutcomeRlSettings):
    """RLOO."""

    algorithm: Literal["rloo"] = "rloo"


class ReinforceSettings(OutcomeRlSettings):
    """REINFORCE++.

    Attributes:
        baseline: The mean of the `group`, or `none`.
    """

    algorithm: Literal["reinforce++"] = "reinforce++"
    baseline: Literal["group", "none"] = "group"


OUTCOME_RL: Mapping[str, type[OutcomeRlSettings]] = {
    "grpo": GrpoSettings,
    "rloo": RlooSettings,
    "reinforce++": ReinforceSettings,
}
"""Settings classes by `training.grpo.algorithm`."""

OutcomeRlBlock = Annotated[
    OutcomeRlSettings,
    SerializeAsAny(),
    BeforeValidator(NamedBlock("algorithm", "grpo", "algorithm", lambda: OUTCOME_RL)),
]
"""Type of a recipe's `training.grpo:`: the settings of its algorithm."""


class RewardModelSettings(Settings):
    """A reward model: linear heads on a frozen encoder (EVO-RAG section 3.3).

    Attributes:
        encoder: "packaged", "hub:owner/name", or a folder with a transformers model or a policy.
            Defaults to the untrained base of the policy that grew the trees.
        heads: `multi`: one head per reward, seven in all; `single`: one for the weighted total.
        labels: Targets of the heads: `component`, the order of each reward's own returns; `total`
            (the paper), the order of the weighted total for all heads, which makes them the same
            problem. A single head always learns the total.
        min_gap: Smallest difference of the weighted totals of two siblings, [0, 1).
        validation: Share of the questions whose pairs are held out for validation.
        split_seed: Seed that selects the validation questions.
        epochs: Passes over the pairs. The paper's one pass is over many more pairs.
        lr: Learning rate of AdamW on the heads, falling linearly to 0.
        max_length: Tokens of the longest step with its prompt; pairs with a longer one are counted
            and dropped.
        batch_tokens: Tokens per forward pass of the encoder.
    """

    encoder: str | None = None
    heads: Literal["multi", "single"] = "multi"
    labels: Literal["component", "total"] = "component"
    min_gap: float = Field(default=0.3, ge=0, lt=1)
    validation: float = Field(default=0.2, ge=0, le=0.5)
    split_seed: int = 0
    epochs: int = Field(default=5, ge=1)
    lr: float = Field(default=1e-3, gt=0)
    max_length: int = Field(default=2048, ge=32)
    batch_tokens: int = Field(default=2048, ge=32)


TrainingKind = Literal["warm-start", "sft", "dpo", "grpo"]
"""Trainings of a policy."""


class TrainingSettings(Settings):
    """One block per trainer, and what trainers share.

    Attributes:
        precision: Compute precision of the layers. Weights, updates and loss stay in float32.
            "auto" is bfloat16 if a GPU or the processor is faster in it (AMX, AMD's AVX512-BF16),
            else float32.
        packed: Whether the common beginnings of prompts in a micro-batch are computed once. The
            result is the same within rounding, in a fraction of the time. Not every model can.
        report_to: Experiment trackers for the curves, in addition to `metrics.jsonl`.
        max_dropped_share: Largest share of examples that are dropped because they are longer than
            `max_length`; above it, training fails. Outcome RL drops without this limit.
    """

    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    packed: bool = True
    report_to: tuple[Literal["tensorboard", "trackio"], ...] = ()
    max_dropped_share: float = Field(default=0.02, ge=0, le=1)
    lora: LoraSettings | None = LoraSettings()
    warm_start: WarmStartSettings = WarmStartSettings()
    sft: SftSettings = SftSettings()
    dpo: DpoSettings = DpoSettings()
    grpo: OutcomeRlBlock = GrpoSettings()
    reward_model: RewardModelSettings = RewardModelSettings()

    def of(self, kind: TrainingKind) -> OptimiserSettings:
        """Returns the block of a training."""
        block: OptimiserSettings = getattr(self, kind.replace("-", "_"))
        return block

    def values_of(self, kind: TrainingKind) -> dict[str, Any]:
        """Returns the settings of a training as plain values: its block's and the shared ones."""
        blocks = {"warm_start", "sft", "dpo", "grpo", "reward_model"}
        shared = self.model_dump(mode="json", exclude=blocks)
        return shared | self.of(kind).model_dump(mode="json")
