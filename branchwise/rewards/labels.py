"""Labels: the reward of a node under any scheme."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from branchwise.types import Component


@dataclass(frozen=True, slots=True)
class Label:
    """A node's reward, or None; and the number of distinct outcomes that it is computed from.

    Attributes:
        reward: SPRE: in [0, 1]. EVO-RAG: a weighted return, of any sign.
        components: Named parts that are stored with the node and its pairs.
        weighted: Parts of a `reward` that is a sum; it leaves out None parts.
    """

    reward: float | None
    n_outcomes: int
    components: tuple[Component, ...] = ()
    weighted: Mapping[str, float | None] = field(default_factory=dict)


def gap(label: Label, sibling: Label) -> float:
    """Returns how much higher `label` is rewarded than `sibling`; both have a reward.

    Leaves a part out of both sums if it is None for either side, because an unknown value is not a
    reason to prefer the other side.
    """
    if label.reward is None or sibling.reward is None:
        raise ValueError("cannot compare a label without a reward")
    if not label.weighted:
        return label.reward - sibling.reward
    return sum(
        part - sibling_part
        for name, part in label.weighted.items()
        if part is not None and (sibling_part := sibling.weighted.get(name)) is not None
    )


def is_wide_enough(difference: float, least: float) -> bool:
    """Returns whether a gap of either sign is at least `least`, except for rounding errors.

    In floating point 0.3 − 0.1 is below 0.2, and judge scores are stored with 32 bits. So the
    tolerance is a hundred-thousandth of `least`.
    """
    return abs(difference) >= least or math.isclose(abs(difference), least, rel_tol=1e-5)
