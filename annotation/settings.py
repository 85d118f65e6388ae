"""What `pairs:` in a recipe may say."""

from typing import Literal

from pydantic import Field

from storage.settings import Settings


class PairSettings(Settings):
    """Which siblings become a preference pair.

    Attributes:
        min_gap: smallest difference of the two labels, [0, 1).
        min_outcomes: distinct completed trajectories that each side's label must rest on; the
            estimator decides which count. A final answer's label is exact, so its own is enough.
        invalid: whether an invalid action may be the rejected side (labelled 0) or is dropped.
    """

    min_gap: float = Field(default=0.01, ge=0, lt=1)
    min_outcomes: int = Field(default=1, ge=1)
    invalid: Literal["drop", "rejected"] = "drop"
