"""What `training:` in a recipe may say."""

from typing import Literal

from pydantic import Field

from storage.settings import Settings


class LoraSettings(Settings):
    """Low-rank adapter on all linear layers.

    Attributes:
        r: rank.
        alpha: its change is multiplied by alpha / r.
        dropout: share of its inputs left out in training.
    """

    r: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    dropout: float = Field(default=0.0, ge=0, lt=1)


class OptimiserSettings(Settings):
    """Shared by every trainer.

    Attributes:
        lr: peak learning rate, falling linearly to 0 after `warmup_share` of the steps.
        epochs: passes over the examples.
        batch_size: examples a step; `micro_batch` of them at a time.
        micro_batch: examples in memory at once; a larger one shares more prompts.
        warmup_share: of the steps, in which the learning rate rises from 0.
        max_examples: the first so many that fit; null for all.
        max_length: tokens of the longest example; longer ones are counted and dropped.
        max_dropped_share: above this share of dropped examples the stage refuses to train.
        precision: that layers compute in; weights, their updates and the loss stay in float32.
            "auto" is bfloat16 where a GPU or the processor multiplies faster in it (AMX, AMD's
            AVX512-BF16), and float32 elsewhere.
        packed: read what the prompts of a micro-batch begin with once for all of them: the same
            training within float error, in a fraction of the time. Not every model can.
        report_to: where the curves also go, beside `metrics.jsonl`.
    """

    lr: float = Field(gt=0)
    epochs: float = Field(default=1.0, gt=0)
    batch_size: int = Field(default=8, ge=1)
    micro_batch: int = Field(default=8, ge=1)
    warmup_share: float = Field(default=0.05, ge=0, lt=1)
    max_length: int = Field(default=1024, ge=32)
    max_dropped_share: float = Field(default=0.02, ge=0, le=1)
    max_examples: int | None = Field(default=None, ge=1)
    save_every: int = Field(default=25, ge=1, description="steps between checkpoints")
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    packed: bool = True
    report_to: tuple[Literal["tensorboard", "trackio"], ...] = ()
    lora: LoraSettings = LoraSettings()


class TraceSettings(Settings):
    """What traces of the protocol evo-rag do beside what is needed, each by chance.

    These habits are meant to be unlearned. A policy that answers greedily does at a state what most
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
    """

    redundant: float = Field(default=0.6, ge=0, le=1)
    detour: float = Field(default=0.25, ge=0, le=1)
    backtrack: float = Field(default=0.5, ge=0, le=1)
    give_up: float = Field(default=0.05, ge=0, le=1)


class WarmStartSettings(OptimiserSettings):
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


class SftSettings(OptimiserSettings):
    """Supervised training (ReasonRAG table 3).

    Attributes:
        examples: `chosen` steps of the pairs, or all steps of `right` trajectories.
    """

    lr: float = Field(default=1e-4, gt=0)
    examples: Literal["chosen", "right"] = "chosen"


class DpoSettings(OptimiserSettings):
    """Direct preference optimisation on sibling pairs (ReasonRAG eq. 3).

    Attributes:
        beta: weight of the divergence from the reference.
        reference: `start` is the policy the run began with; `none` is the papers' printed formula.
        loss: TRL's name of the loss.
        sft_weight: of the chosen step's mean token loss, added to the preference loss, so that its
            own probability does not fall (Pang et al. 2024, "Iterative reasoning preference
            optimization", eq. 1; there 1).
        max_start_margin: leave out pairs whose chosen step the start already finds this much
            likelier than the rejected one, in nats; see `training.undecided`.
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


class RewardModelSettings(Settings):
    """A reward model: linear heads on a frozen encoder (EVO-RAG section 3.3).

    Attributes:
        encoder: "packaged", "hub:owner/name", or a folder with any encoder or decoder of
            transformers or with a policy; null takes the untrained base of the policy that grew
            the trees.
        heads: `multi` has one for each of the seven rewards, `single` one on the weighted total.
        labels: what the heads learn: `component`, each the order of its own reward's returns;
            `total` (the paper), all of them that of the weighted total, so that they solve one and
            the same problem. A single head learns the total either way.
        min_gap: smallest difference of the weighted totals of two siblings, [0, 1).
        validation: share of the questions whose pairs are not trained on but measured.
        split: which questions those are: another number, other ones.
        epochs: passes over the pairs; the paper's one is over many more than a small run has.
        lr: of AdamW on the heads, falling linearly to 0.
        weight_decay: of AdamW on the heads.
        batch_size: pairs a step.
        max_length: tokens of the longest step behind its prompt; pairs with a longer one are
            counted and dropped.
        max_dropped_share: above this share of such steps the stage refuses to train.
        batch_tokens: that the encoder reads at once.
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
    reward_model: RewardModelSettings = RewardModelSettings()
