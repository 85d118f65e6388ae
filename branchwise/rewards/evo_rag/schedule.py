"""Weights of EVO-RAG's seven rewards over an episode (table 1, sections 3.5 and 3.6)."""

from collections.abc import Mapping
from typing import NamedTuple

from ..settings import REWARDS, EvoRagSettings, RewardName

Weights = Mapping[str, float]


class Column(NamedTuple):
    """Table 1: a weight at the start of Discovery, between the stages, and at the end."""

    start: float
    mid: float
    end: float


TABLE_1: Mapping[RewardName, Column] = {
    "retrieval": Column(2.0, 1.0, 0.5),
    "action": Column(1.5, 0.8, 0.4),
    "overlap": Column(0.1, 0.5, 1.2),
    "backtrack": Column(0.3, 0.5, 1.0),
    "refusal": Column(0.5, 0.5, 0.5),
    "step": Column(0.02, 0.05, 0.10),
    "answer": Column(0.05, 0.10, 1.00),
}
"""β, λ, γ, δ, ρ, η, κ."""

RISING = Column(0.4, 0.8, 1.2)
"""λ if `action_weight` is `rises`. A sentence of section 3.2 says that it increases linearly from
0.4 to 1.2, against table 1. The table's own value between the stages is halfway.
"""


def weights(settings: EvoRagSettings, p: float) -> Weights:
    """Returns w_k at progress p: w_k(t) = (1 − p) w_early + p w_late (section 3.6).

    Args:
        p: t / T_max, the share of the episode that is over; values above 1 count as 1.

    Returns:
        All seven, ≥ 0; a reward that does not count has weight 0.
    """
    counted = REWARDS if settings.components is None else settings.components
    return {name: _weight(name, settings, min(p, 1.0)) * (name in counted) for name in REWARDS}


def _weight(name: RewardName, settings: EvoRagSettings, p: float) -> float:
    rises = name == "action" and settings.action_weight == "rises"
    column, discovery = RISING if rises else TABLE_1[name], settings.stage == "discovery"
    match settings.schedule:
        case "time-dynamic":
            # Discovery goes from start to mid, Refinement from mid to end, so that the weights do
            # not jump between the stages.
            early, late = column[:2] if discovery else column[1:]
            return (1 - p) * early + p * late
        case "two-stage":
            return column.start if discovery else column.end
        case "static":
            return column.mid
        case "answer-only":
            return float(name == "answer")
        case "none":
            return 0.0
