"""Leaves out examples that are too long, and reports how many."""

from collections.abc import Sequence

from base.errors import ConfigError


def filter_by_length(
    lengths: Sequence[int], max_length: int, max_dropped_share: float
) -> tuple[list[int], str]:
    """Returns the indices of the examples that fit, and a description of all lengths.

    Raises:
        ConfigError: If more than `max_dropped_share` do not fit. Examples are never cut.
    """
    kept = [i for i, length in enumerate(lengths) if length <= max_length]
    ordered = sorted(lengths) or [0]
    median, longest, too_long = ordered[len(ordered) // 2], ordered[-1], len(lengths) - len(kept)
    if too_long > max_dropped_share * len(lengths) or not kept:
        raise ConfigError(
            f"{too_long} of {len(lengths)} examples are longer than max_length {max_length} tokens "
            f"(longest {longest}); raise max_length, use shorter or fewer passages, or raise "
            "training.max_dropped_share"
        )
    return kept, (
        f"{len(lengths)} examples, median {median} tokens, longest {longest}, {too_long} over the "
        "limit"
    )
