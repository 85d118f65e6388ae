"""What `training:` in a recipe may say."""

from typing import Literal

from pydantic import Field

from storage.settings import Settings


class LoraSettings(Settings):
    """Low-rank adapter on all linear layers."""

    r: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    dropout: float = Field(default=0.0, ge=0, lt=1)


class OptimiserSettings(Settings):
    """Shared by every trainer.

    Attributes:
        lr: peak learning rate, falling linearly to 0 after `warmup_share` of the steps.
        batch_size: examples a step; `micro_batch` of them at a time.
        max_length: tokens of the longest example; longer ones are counted and dropped.
        max_dropped_share: above this share of dropped examples the stage refuses to train.
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
    packed: bool = True
    report_to: tuple[Literal["tensorboard", "trackio"], ...] = ()
    lora: LoraSettings = LoraSettings()


class WarmStartSettings(OptimiserSettings):
    """Supervised start on traces built from gold facts.

    Attributes:
        base: what is trained: "packaged", or a model folder.
        questions: how many questions of the warm part are read; unanswerable ones give no trace.
        label_smoothing: softens the targets, so that sampled siblings still vary.
    """

    lr: float = Field(default=5e-4, gt=0)
    base: str = "packaged"
    questions: int = Field(default=150, ge=1)
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)


class SftSettings(OptimiserSettings):
    """Supervised training on chosen steps, or on right trajectories (ReasonRAG table 3)."""

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
            likelier than the rejected one, in nats; see `training.contested`.
        holdout: share of the questions whose pairs are not trained on but scored afterwards: did
            the policy learn what is preferred, or only these pairs?
    """

    lr: float = Field(default=1e-4, gt=0)
    beta: float = Field(default=0.1, gt=0)
    reference: Literal["start", "none"] = "start"
    loss: Literal["sigmoid", "ipo", "hinge"] = "sigmoid"
    sft_weight: float = Field(default=0.0, ge=0)
    max_start_margin: float | None = None
    holdout: float = Field(default=0.0, ge=0, le=0.5)


class TrainingSettings(Settings):
    """One block a trainer."""

    warm_start: WarmStartSettings = WarmStartSettings()
    sft: SftSettings = SftSettings()
    dpo: DpoSettings = DpoSettings()
