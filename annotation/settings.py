"""Settings of the `pairs:` block."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from branchwise.agent import ACTIONS
from branchwise.base import Settings


def _check_action(kind: str) -> str:
    if kind not in ACTIONS:
        names = ", ".join(ACTIONS)
        raise PydanticCustomError(
            "unknown_action", "unknown action; use some of {names}", {"names": names}
        )
    return kind


ActionName = Annotated[str, AfterValidator(_check_action)]


class PairSettings(Settings):
    """Which siblings become a preference pair.

    The first three settings decide which pairs are valid. The others filter them, and keep all by
    default. They serve control experiments, and data that one state, question or length dominates.

    Attributes:
        min_gap: Smallest difference of the two labels, [0, 1). With `score: reward_model`, of the
            two scores, which are weighted sums of standardised heads.
        min_outcomes: Minimum number of distinct finished trajectories that support each side's
            label; the estimator decides which count. The label of a final answer is exact and
            always suffices.
        same_content: Which contents are equal, so that their pair is dropped: those of two actions
            of the same kind after normalisation (`normalised`); or only those that are the same
            character for character, whatever the actions (`verbatim`, ReasonRAG's published code).
            If the reward depends on the whole text (ARENA, R1-Searcher, Eval-RAR), the texts are
            compared instead.
        invalid: Whether pairs with an invalid action on the rejected side (label 0) are dropped.
            The filters `actions` and `same_action` do not apply to these pairs.
        actions: Allowed actions of both sides. Unset: any.
        same_action: Whether both sides must have the same kind of action. Whether to search or to
            answer is the one choice that all questions share, so a few pairs about it, all in the
            same direction, change the whole policy.
        max_length_ratio: Largest ratio of the longer to the shorter reply, in characters, from 1.
            Unset: any. Preference training drifts towards the length of the chosen side.
        guessable: `drop` leaves out pairs of questions whose answer is yes, no or part of the
            question (`rewards.answers`). A lucky guess counts as right there, so their labels
            depend less on the earlier steps.
        per_state: `all` pairs of siblings, or only the `extremes`: the pair with the largest gap.
        max_per_question: Most pairs per question, those with the largest gap. Unset: all.
        score: Ordering quantity: the `labels`, or the scores of the `reward_model`.
        order: `earned` prefers the higher label. `shuffled` prefers a side by coin toss, as a
            control: rewards stay with their side, so `reward_gap` may be negative, and an invalid
            action may be preferred.
        confirmed: Keep only pairs whose order also holds in the fresh rollouts of `branchwise
            diagnose`. For `relabel` only.
    """

    min_gap: float = Field(default=0.01, ge=0, lt=1)
    min_outcomes: int = Field(default=1, ge=1)
    same_content: Literal["normalised", "verbatim"] = "normalised"
    invalid: Literal["drop", "rejected"] = "drop"
    actions: tuple[ActionName, ...] | None = Field(default=None, min_length=1)
    same_action: bool = False
    max_length_ratio: float | None = Field(default=None, ge=1)
    guessable: Literal["keep", "drop"] = "keep"
    per_state: Literal["all", "extremes"] = "all"
    max_per_question: int | None = Field(default=None, ge=1)
    score: Literal["labels", "reward_model"] = "labels"
    order: Literal["earned", "shuffled"] = "earned"
    confirmed: bool = False
