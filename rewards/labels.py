"""Labels: the reward of a node under any scheme."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from storage.records import Component


@dataclass(frozen=True, slots=True)
class Label:
    """A node's reward, or None; and on how many distinct outcomes it rests.

    Attributes:
        reward: SPRE: in [0, 1]. EVO-RAG: a weighted return, of any sign.
        components: named parts that are stored with the node and its pairs.
        weighted: Parts of a `reward` that is a sum; None parts are left out of it.
    """

    reward: float | None
    n_outcomes: int
    components: tuple[Component, ...] = ()
    weighted: Mapping[str, float | None] = field(default_factory=dict)


def gap(one: Label, other: Label) -> float:
    """Returns how much higher `one` is rewarded; both are labelled.

    A part that is None for one of them leaves both sums: what nobody could say of one side is no
    reason to prefer the other.
    """
    if one.reward is None or other.reward is None:
        raise ValueError("a label without a reward is compared with nothing")
    if not one.weighted:
        return one.reward - other.reward
    shared = [
        mine - theirs
        for name, mine in one.weighted.items()
        if mine is not None and (theirs := other.weighted.get(name)) is not None
    ]
    return sum(shared)
