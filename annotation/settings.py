"""What `pairs:` in a recipe may say."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from agent.actions import ACTIONS
from storage.settings import Settings


def _known_action(kind: str) -> str:
    if kind not in ACTIONS:
        known = ", ".join(ACTIONS)
        raise PydanticCustomError(
            "unknown_action", "no such action; use some of {known}", {"known": known}
        )
    return kind


ActionName = Annotated[str, AfterValidator(_known_action)]


class PairSettings(Settings):
    """Which siblings become a preference pair.

    The first three decide which pairs are valid; the others filter them, and at their defaults keep
    all. They are for controls (what if the order meant nothing, or only answers were compared?)
    and for data that no state, question or length should dominate.

    Attributes:
        min_gap: smallest difference of the two labels, [0, 1); under `score: reward_model` of the
            two scores, which are weighted sums of standardised heads and no returns.
        min_outcomes: distinct completed trajectories that each side's label must rest on; the
            estimator decides which count. A final answer's label is exact, so its own is enough.
        invalid: whether an invalid action may be the rejected side (labelled 0) or is dropped.
        actions: both sides' actions must be among these; unset: any.
        same_action: both sides must be of one kind of action. Whether to search on or to answer is
            the one choice that all questions share, so a few pairs about it, all leaning one way,
            turn the whole policy.
        max_length_ratio: most that the longer reply may have, as a multiple of the shorter one,
            in characters, from 1; unset: anything. Preference training drifts towards the length
            of what it prefers.
        max_similarity: most that the words of two contents of one kind of action may have in
            common (Jaccard), in [0, 1); unset: anything. Siblings that say the same in other words
            get an order, too, but it is rarely about anything.
        guessable: `drop` leaves out the pairs of questions whose answer is yes or no or stands in
            the question (`rewards.guessable`): right by luck counts as right there, so their labels
            say less of the steps before.
        per_state: `all` pairs of siblings, or the `extremes`: the one pair of a state with the
            largest gap, its best against its worst.
        max_per_question: pairs of one question's tree, those with the largest gap; unset: all.
        score: what says which side is better: the labels, or a trained reward model's score of
            both steps (`reward_model:` names it).
        order: `earned` puts the higher label first; `shuffled` tosses a coin for every pair that
            was chosen so, whatever its labels. Rewards and all else go with their side, so a
            pair's `reward_gap` may then be negative, and an invalid action may be preferred.
        confirmed: Keep only pairs whose order holds under the fresh
            rollouts of the run (`branchwise diagnose` draws them), so for `relabel` alone.
    """

    min_gap: float = Field(default=0.01, ge=0, lt=1)
    min_outcomes: int = Field(default=1, ge=1)
    invalid: Literal["drop", "rejected"] = "drop"
    actions: tuple[ActionName, ...] | None = Field(default=None, min_length=1)
    same_action: bool = False
    max_length_ratio: float | None = Field(default=None, ge=1)
    max_similarity: float | None = Field(default=None, ge=0, lt=1)
    guessable: Literal["keep", "drop"] = "keep"
    per_state: Literal["all", "extremes"] = "all"
    max_per_question: int | None = Field(default=None, ge=1)
    score: Literal["labels", "reward_model"] = "labels"
    order: Literal["earned", "shuffled"] = "earned"
    confirmed: bool = False
