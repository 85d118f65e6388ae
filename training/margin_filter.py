"""Leaves out pairs that the start has already decided.

If the start barely ever takes the rejected step, the pair teaches it nothing. DPO still rewards
pushing that step further down: the probability then goes to the likeliest step, right or wrong, and
that of the chosen step falls too (Razin et al. 2024, "Unintentional unalignment").
"""

from collections.abc import Mapping, Sequence

from storage.errors import ConfigError
from training.packing import StepTokens
from training.preferences import PreferenceTokens


def filter_by_start_margin(
    pairs: Sequence[PreferenceTokens], start: Mapping[StepTokens, float], most: float | None
) -> list[int]:
    """Returns the indices of the pairs whose chosen step is at most e^`most` times likelier.

    Args:
        start: Log-probabilities of all steps under the start, in nats; read only if `most` is set.
        most: Largest margin in nats; None keeps all.

    Raises:
        ConfigError: If no pair remains.
    """
    if most is None:
        return list(range(len(pairs)))
    kept = []
    for place, pair in enumerate(pairs):
        chosen, rejected = (start[row] for row in pair.rows)
        if chosen - rejected <= most:
            kept.append(place)
    if not kept:
        raise ConfigError(
            f"training.dpo.max_start_margin {most} leaves none of {len(pairs)} pairs; raise it"
        )
    return kept
