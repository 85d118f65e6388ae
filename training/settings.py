"""What `training:` in a recipe may say."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from storage.settings import Settings


class LoraSettings(Settings):
    """Low-rank adapter on all linear layers.

    Attributes:
        r: rank.
        alpha: Scale; the adapter's change is multiplied by alpha / r.
        dropout: share of its inputs left out in training.
    """

    r: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    dropout: float = Field(default=0.0, ge=0, lt=1)


class OptimiserSettings(Settings):
    """Shared by every trainer of a policy.

    Attributes:
        lr: peak learning rate, falling linearly to 0 after `warmup_share` of the steps.
        warmup_share: Fraction of the steps used for linear learning-rate warmup.
        max_length: tokens of the longest example; longer ones are counted and dropped.
        precision: Compute precision of the layers. Weights, updates and loss stay in float32.
            "auto" is bfloat16 where a GPU or the processor multiplies faster in it (AMX, AMD's
            AVX512-BF16), and float32 elsewhere.
        packed: read what the prompts of a micro-batch begin with once for all of them: the same
            training within float error, in a fraction of the time. Not every model can.
        report_to: where the curves also go, beside `metrics.jsonl`.
    """

    lr: float = Field(gt=0)
    warmup_share: float = Field(default=0.05, ge=0, lt=1)
    max_length: int = Field(default=1024, ge=32)
    save_every: int = Field(default=25, ge=1, description="steps between checkpoints")
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    packed: bool = True
    report_to: tuple[Literal["tensorboard", "trackio"], ...] = ()
    lora: LoraSettings = LoraSettings()


class ExampleSettings(OptimiserSettings):
    """Shared by the trainers that are given their examples.

    Attributes:
        epochs: passes over the examples.
        batch_size: examples per step; `micro_batch` of them at a time.
        micro_batch: examples in memory at once; a larger one shares more prompts.
        max_examples: the first so many that fit; unset: all.
        max_dropped_share: above this share of dropped examples the stage refuses to train.
    """

    epochs: float = Field(default=1.0, gt=0)
    batch_size: int = Field(default=8, ge=1)
    micro_batch: int = Field(default=8, ge=1)
    max_dropped_share: float = Field(default=0.02, ge=0, le=1)
    max_examples: int | None = Field(default=None, ge=1)


class TraceSettings(Settings):
    """How traces differ from the shortest way. The shares are those of the protocol evo-rag.

    Its habits are meant to be unlearned. A policy that answers greedily does at a state what most
    of the traces did there, so a habit of less than half of them shows in its samples only.

    Attributes:
        redundant: share of the hops that are searched again, in other words or the same, when
            their passage was found.
        detour: share of the hops after which a wrong lead is searched: the title of a passage
            that was shown and is not needed.
        backtrack: share of the searches that brought nothing new (misses, redundant ones, detours)
            that are taken back.
        give_up: share of the answerable questions of two and more hops that are refused with the
            evidence half found.
        answer_only: traces of the protocol arena are answers without the other sections
            (SFT-direct of its table).
    """

    redundant: float = Field(default=0.6, ge=0, le=1)
    detour: float = Field(default=0.25, ge=0, le=1)
    backtrack: float = Field(default=0.5, ge=0, le=1)
    give_up: float = Field(default=0.05, ge=0, le=1)
    answer_only: bool = False


class WarmStartSettings(ExampleSettings):
    """Supervised start on traces built from gold facts.

    Attributes:
        base: what is trained: "packaged", or a model folder.
        questions: how many questions of the warm part are read; unanswerable ones give a trace
            where the protocol can refuse.
        label_smoothing: softens the targets, so that sampled siblings still vary.
        traces: what the start learns to do needlessly (evo-rag).
    """

    lr: float = Field(default=5e-4, gt=0)
    base: str = "packaged"
    questions: int = Field(default=150, ge=1)
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    traces: TraceSettings = TraceSettings()


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
        beta: weight of the divergence from the reference.
        reference: `start` is the policy the run began with; `none` is the papers' printed formula.
        loss: TRL's name of the loss.
        sft_weight: Weight of the chosen step's mean token loss, added to the preference loss,
            so that its
            own probability does not fall (Pang et al. 2024, "Iterative reasoning preference
            optimization", eq. 1; there 1).
        max_start_margin: leave out pairs whose chosen step the start already finds this much
            likelier than the rejected one, in nats; see `training.margin_filter`.
        holdout: share of the questions whose pairs are not trained on but scored afterwards: did
            the policy learn what is preferred, or only these pairs?
        off_policy: train on pairs that another policy drew than the one that is trained, as the
            second step of a study does that has one set of trees for both. Given up: the steps
            compared are those that the other one takes, and `kl` measures nothing any more.
    """

    lr: float = Field(default=1e-4, gt=0)
    beta: float = Field(default=0.1, gt=0)
    reference: Literal["start", "none"] = "start"
    loss: Literal["sigmoid", "ipo", "hinge"] = "sigmoid"
    sft_weight: float = Field(default=0.0, ge=0)
    max_start_margin: float | None = None
    holdout: float = Field(default=0.0, ge=0, le=0.5)
    off_policy: bool = False


class GrpoStage(Settings):
    """One of several trainings in a row, each from the end of the one before.

    Attributes:
        name: Name of the stage. Its model is `models/<run>/grpo-<name>`; the last one's is
            `models/<run>/grpo`.
        batches: Number of batches; defaults to `training.grpo.batches`.
        rewards: settings of `rewards` that are others in this stage.
        select: asks only the questions of this stage of `branchwise select`; unset: all.
    """

    name: str = Field(pattern=r"^[a-z0-9-]+$")
    batches: int | None = Field(default=None, ge=1)
    rewards: dict[str, Any] = Field(default_factory=dict)
    select: str | None = None


class GrpoSettings(OptimiserSettings):
    """Reinforcement learning on outcome rewards.

    Attributes:
        algorithm: GRPO compares a rollout with its group, RLOO with the group's others;
            REINFORCE++ gives each token the return that follows it, standardised over the batch.
        scale: `std` divides GRPO's advantages by the deviation of their group; `none` does not.
        baseline: what REINFORCE++ subtracts from a reward: the mean of its `group`, or `none`.
        questions: how many questions of `data` are asked, in turn, in another order each time.
        batches: batches of rollouts; the policy that draws per batch has learnt from all before it.
        batch_questions: questions per batch.
        group_size: G, rollouts per question.
        updates: optimiser steps per batch; after the first one, rollouts are off-policy.
        clip: ε of the clipped loss.
        ratio: what π_old is in the ratio of the clipped loss: the `trainer`'s own
            log-probabilities before the batch's first update, or the `engine`'s, which also
            corrects for its rounding (`policy.temperature` must then be 1).
        aggregation: mean of the loss over a `rollout`'s tokens, then over rollouts (GRPO), or over
            all `token`s alike, so that long rollouts count more (DAPO).
        kl: estimate of the divergence from the start: k1, k2 or k3.
        kl_in: whether it is subtracted from the `reward` (k1) or added to the `loss` (k2, k3).
        beta: weight of the divergence; 0: it is not computed, only watched.
        kl_on: rollouts whose divergence counts in the loss: `all`, or only those that are `wrong`.
        dynamic_sampling: how many more questions a batch may ask in place of those whose rollouts
            all have the same reward.
        max_tokens: distinct tokens that an update trains on, prompts included; above it, policy
            calls are drawn at random. Unset: all.
        micro_tokens: distinct tokens in memory at once.
        eval_every: batches between greedy evaluations on `dev`; 0: never.
        eval_questions: how many questions those have.
        rollouts: `fresh` ones of the policy in training, or the `trees` that `annotate` grew, where
            each step is compared with its siblings (see `runs.tree_groups`).
        stages: trainings in a row instead of one, each with an optimiser of its own; the reference
            stays the start of the first.
    """

    lr: float = Field(default=3e-4, gt=0)
    warmup_share: float = Field(default=0.0, ge=0, lt=1)
    max_length: int = Field(default=2048, ge=32)
    save_every: int = Field(default=1, ge=1, description="batches between checkpoints")
    algorithm: Literal["grpo", "rloo", "reinforce++"] = "grpo"
    scale: Literal["std", "none"] = "std"
    baseline: Literal["group", "none"] = "group"
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
    kl_on: Literal["all", "wrong"] = "all"
    dynamic_sampling: int = Field(default=0, ge=0)
    max_tokens: int | None = Field(default=16_000, ge=256)
    micro_tokens: int = Field(default=2048, ge=256)
    eval_every: int = Field(default=0, ge=0)
    eval_questions: int = Field(default=100, ge=1)
    rollouts: Literal["fresh", "trees"] = "fresh"
    stages: tuple[GrpoStage, ...] = ()

    @model_validator(mode="after")
    def _estimators_fit(self) -> Self:
        if self.kl_in == "loss" and self.kl == "k1":
            raise ValueError(
                "kl: the expected gradient of k1 in the loss is 0, so it holds nothing back. Use "
                "k2 or k3, or set kl_in: reward"
            )
        if self.kl_in == "reward" and self.kl != "k1":
            raise ValueError(f"kl: {self.kl} is a loss term. Use k1 in the reward, or kl_in: loss")
        if self.updates > self.batch_questions * self.group_size:
            raise ValueError("updates: there are fewer rollouts in a batch than updates")
        return self


class RewardModelSettings(Settings):
    """A reward model: linear heads on a frozen encoder (EVO-RAG section 3.3).

    Attributes:
        encoder: "packaged", "hub:owner/name", or a folder with any encoder or decoder of
            transformers or with a policy; defaults to the untrained base of the policy that grew
            the trees.
        heads: `multi` has one for each of the seven rewards, `single` one on the weighted total.
        labels: what the heads learn: `component`, each the order of its own reward's returns;
            `total` (the paper), all of them that of the weighted total, so that they solve one and
            the same problem. A single head learns the total either way.
        min_gap: smallest difference of the weighted totals of two siblings, [0, 1).
        validation: share of the questions whose pairs are not trained on but measured.
        split: which questions those are: another number, other ones.
        epochs: passes over the pairs; the paper's one is over many more than a small run has.
        lr: Learning rate of AdamW on the heads, falling linearly to 0.
        weight_decay: Weight decay of AdamW on the heads.
        batch_size: pairs per step.
        max_length: tokens of the longest step behind its prompt; pairs with a longer one are
            counted and dropped.
        max_dropped_share: above this share of such steps the stage refuses to train.
        batch_tokens: Tokens per forward pass of the encoder.
    """

    encoder: str | None = None
    heads: Literal["multi", "single"] = "multi"
    labels: Literal["component", "total"] = "component"
    min_gap: float = Field(default=0.3, ge=0, lt=1)
    validation: float = Field(default=0.2, ge=0, le=0.5)
    split: int = 0
    epochs: int = Field(default=5, ge=1)
    lr: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    batch_size: int = Field(default=64, ge=1)
    max_length: int = Field(default=2048, ge=32)
    max_dropped_share: float = Field(default=0.02, ge=0, le=1)
    batch_tokens: int = Field(default=2048, ge=32)


class TrainingSettings(Settings):
    """One block a trainer."""

    warm_start: WarmStartSettings = WarmStartSettings()
    sft: SftSettings = SftSettings()
    dpo: DpoSettings = DpoSettings()
    grpo: GrpoSettings = GrpoSettings()
    reward_model: RewardModelSettings = RewardModelSettings()
