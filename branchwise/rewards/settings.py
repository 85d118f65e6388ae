"""Settings of the `rewards:` block: one class per reward scheme."""

from functools import partial
from typing import Literal, get_args

from pydantic import Field

from branchwise.base import Settings

from .answers import NormalForm, normalise, strict_form

Estimator = Literal["monte_carlo", "tree", "rollout", "judge"]
RewardName = Literal["retrieval", "action", "overlap", "backtrack", "refusal", "step", "answer"]
REWARDS: tuple[RewardName, ...] = get_args(RewardName)
"""EVO-RAG's seven, in the order (β, λ, γ, δ, ρ, η, κ) of its section 3.5."""


class SchemeSettings(Settings):
    """Settings that every reward scheme has.

    Attributes:
        scheme: Name of the scheme; it decides the other settings (`rewards.schemes`).
        comparison: How answers are compared: `squad` as papers do, which takes 3.14 for 314 and C#
            for C, or `strict`. Defaults to `strict` for the sources `jsonl` and `atlas`, else to
            `squad`. Reported EM and F1 are always SQuAD's.
    """

    scheme: str
    comparison: Literal["squad", "strict"] | None = None

    @property
    def form(self) -> NormalForm:
        """The form in which answers are compared."""
        return strict_form if self.comparison == "strict" else normalise


class SpreSettings(SchemeSettings):
    """Shortest Path Reward Estimation (ReasonRAG eq. 1).

    Attributes:
        estimator: Defaults to `monte_carlo` with the rollout evaluator, `tree` with the judge.
        alpha: Discount per step, in (0, 1].
        label_forced: Whether forced answers count (the published data leave them unlabelled).
        keep_articles: Whether F1 keeps articles (the published code).
        judge_decay: Whether a judge's score is multiplied by α^depth, as an outcome is. The
            published code uses the score as it is.
    """

    scheme: Literal["spre"] = "spre"
    estimator: Estimator | None = None
    alpha: float = Field(default=0.9, gt=0, le=1)
    label_forced: bool = True
    keep_articles: bool = False
    judge_decay: bool = True

    @property
    def form(self) -> NormalForm:
        form = strict_form if self.comparison == "strict" else normalise
        return partial(form, keep_articles=self.keep_articles)


class EvoRagSettings(SchemeSettings):
    """EVO-RAG's step rewards and their weights (sections 3.2, 3.5 and 3.6).

    Attributes:
        schedule: `time-dynamic` interpolates between the two columns of the stage (table 1);
            `two-stage` uses Start in Discovery and End in Refinement; `static` uses Mid;
            `answer-only` has weight 1 on the answer alone; `none` sets all weights to 0 and
            gives no pairs.
        stage: Curriculum stage.
        components: Names of the rewards that count. Unset: all seven.
        horizon: T of the progress t / T, in policy calls, which decides the weights (section 3.6)
            and from when on a search is late (section 3.2). Defaults to `agent.max_steps`, so that
            episodes reach the late weights (the paper: 20).
        action_weight: Weight λ of that penalty: `falls` from 1.5 over 0.8 to 0.4 (table 1), or
            `rises` from 0.4 over 0.8 to 1.2 (the text of section 3.2).
        retrieval_bonus: `novel` rewards each gold document once, `any` (the paper) every time.
        early_refusal: A REFUSE before any SEARCH is `wrong`, or `judged` by the evidence like any
            other (the paper), so that it is right. Verdicts of a verifier on it exist only in trees
            that were grown with `judged`.
        unanswerable_search: Reward of a SEARCH on an unanswerable question: `unknown`, or `missed`
            as for any search without a gold document (the paper), so that any answer is better
            there than a search followed by a refusal.
        negative_cosine: If a query has a negative cosine to all earlier ones, the overlap reward
            is `ignored`, or the policy `earns` its distance below 0 (the paper).
        overlap_threshold: Cosine from which a late search is redundant. The paper's 0 hits nearly
            every late search.
        step_value: Raw value of a step (the paper also tried −0.5 and −2).
    """

    scheme: Literal["evo-rag"] = "evo-rag"
    schedule: Literal["time-dynamic", "two-stage", "static", "answer-only", "none"] = "time-dynamic"
    stage: Literal["discovery", "refinement"] = "refinement"
    components: tuple[RewardName, ...] | None = Field(default=None, min_length=1)
    horizon: int | None = Field(default=None, ge=1)
    action_weight: Literal["falls", "rises"] = "falls"
    retrieval_bonus: Literal["novel", "any"] = "novel"
    early_refusal: Literal["wrong", "judged"] = "wrong"
    unanswerable_search: Literal["unknown", "missed"] = "unknown"
    negative_cosine: Literal["ignored", "earns"] = "ignored"
    overlap_threshold: float = Field(default=0.8, ge=0, le=1)
    step_value: float = Field(default=-1.0, le=0)
