"""Pairs that the start has not decided yet.

A pair whose rejected step the start would barely ever take has nothing to teach it, and DPO pays
for pushing that step down further: the probability goes to whatever is likeliest already, right or
wrong, and the chosen step's own falls with it (Razin et al. 2024, "Unintentional unalignment").
"""

from collections.abc import Mapping, Sequence

from storage.errors import ConfigError
from training.packing import StepTokens
from training.preferences import PreferenceTokens


def undecided_pairs(
    pairs: Sequence[PreferenceTokens], start: Mapping[StepTokens, float], most: float | None
) -> list[int]:
    """Returns places of the pairs whose chosen step the start finds at most e^`most` times
    likelier.

    Args:
        start: log-probabilities of all steps under the start, in nats; read only if `most` is set.
        most: Largest margin in nats; None keeps all.

    Raises:
        ConfigError: If none is left.
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
