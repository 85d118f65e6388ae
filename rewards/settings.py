"""Settings of the reward schemes: what `rewards:` in a recipe may say."""

from typing import Literal, get_args

from pydantic import Field

from storage.settings import Settings

Estimator = Literal["monte_carlo", "tree", "rollout", "judge"]
RewardName = Literal["retrieval", "action", "overlap", "backtrack", "refusal", "step", "answer"]
REWARDS: tuple[RewardName, ...] = get_args(RewardName)
"""EVO-RAG's seven, in the order (β, λ, γ, δ, ρ, η, κ) of its section 3.5."""


class SchemeSettings(Settings):
    """Settings that every reward scheme has.

    Attributes:
        scheme: Name of the scheme, which decides what else may be set (`rewards.schemes`).
    """

    scheme: str


class SpreSettings(SchemeSettings):
    """Shortest Path Reward Estimation (ReasonRAG eq. 1).

    Attributes:
        estimator: Defaults to `monte_carlo` with the rollout evaluator, `tree` with the judge.
        alpha: what every step costs, in (0, 1].
        label_forced: whether a forced answer counts (the published data leave it unlabelled).
        keep_articles: F1 without removing articles (the published code).
    """

    scheme: Literal["spre"] = "spre"
    estimator: Estimator | None = None
    alpha: float = Field(default=0.9, gt=0, le=1)
    label_forced: bool = True
    keep_articles: bool = False


class EvoRagSettings(SchemeSettings):
    """EVO-RAG's step rewards and how they are weighed (sections 3.2, 3.5 and 3.6).

    Attributes:
        schedule: `time-dynamic` interpolates between the two columns of the stage (table 1),
            `two-stage` holds Start through Discovery and End through Refinement, `static` holds
            Mid; `answer-only` weighs the answer alone, with 1; `none` weighs nothing, so that no
            pair is left.
        stage: Curriculum stage.
        components: names of the rewards that count; unset: all seven.
        horizon: T of the progress t / T, in policy calls; defaults to `agent.max_steps`, so that
            episodes reach the late weights (the paper: 20).
        retrieval_bonus: `novel` pays a gold document once, `any` (the paper) every time.
        early_refusal: a REFUSE before any SEARCH is `wrong`, or `judged` by the evidence as any
            other (the paper), so that it is right, there being none. A verifier's word on it is in
            trees that were grown with `judged` alone; elsewhere it is unset.
        unanswerable_search: a SEARCH on a question without an answer earns what is `unknown`, or
            has `missed` as any that brings no gold document (the paper), so that every answer is
            better there than a search that ends in a refusal.
        negative_cosine: a query unlike all earlier ones is `ignored` by the overlap, or `earns`
            what its largest cosine is below 0 (the paper).
        overlap_threshold: cosine from which a late search is redundant; 0 is the paper's, which
            hits nearly every late search.
        step_value: raw value of a step (the paper also tried −0.5 and −2).
    """

    scheme: Literal["evo-rag"] = "evo-rag"
    schedule: Literal["time-dynamic", "two-stage", "static", "answer-only", "none"] = "time-dynamic"
    stage: Literal["discovery", "refinement"] = "refinement"
    components: tuple[RewardName, ...] | None = Field(default=None, min_length=1)
    horizon: int | None = Field(default=None, ge=1)
    retrieval_bonus: Literal["novel", "any"] = "novel"
    early_refusal: Literal["wrong", "judged"] = "wrong"
    unanswerable_search: Literal["unknown", "missed"] = "unknown"
    negative_cosine: Literal["ignored", "earns"] = "ignored"
    overlap_threshold: float = Field(default=0.8, ge=0, le=1)
    step_value: float = Field(default=-1.0, le=0)
