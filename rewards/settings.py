"""What `spre:` in a recipe may say."""

from typing import Literal

from pydantic import Field

from storage.settings import Settings

Estimator = Literal["monte_carlo", "tree", "rollout", "judge"]


class SpreSettings(Settings):
    """Shortest Path Reward Estimation (ReasonRAG eq. 1).

    Attributes:
        estimator: null takes `monte_carlo` with the rollout evaluator, `tree` with the judge.
        alpha: what every step costs, in (0, 1].
        rollouts: simulated completions of a new node.
        temperature: of the rollouts; null takes the policy's. 0 asks what the policy comes to if
            it is decoded greedily from here on, which one rollout answers without noise.
        label_forced: whether a forced answer counts (the published data leave it unlabelled).
        keep_articles: F1 without removing articles (the published code).
    """

    estimator: Estimator | None = None
    alpha: float = Field(default=0.9, gt=0, le=1)
    rollouts: int = Field(default=1, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=5)
    label_forced: bool = True
    keep_articles: bool = False
