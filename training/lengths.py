"""Measures example lengths, and reports every example that is dropped."""

from collections.abc import Sequence
from dataclasses import dataclass

from base.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LengthReport:
    """Lengths of examples, in tokens, and the number that do not fit."""

    n: int
    median: int
    longest: int
    too_long: int

    def __str__(self) -> str:
        return (
            f"{self.n} examples, median {self.median} tokens, longest {self.longest}, "
            f"{self.too_long} over the limit"
        )


def filter_by_length(
    lengths: Sequence[int], max_length: int, max_dropped_share: float
) -> tuple[list[int], LengthReport]:
    """Returns the indices of the examples that fit, and the report.

    Raises:
        ConfigError: If more than `max_dropped_share` do not fit. Examples are never cut.
    """
    kept = [i for i, length in enumerate(lengths) if length <= max_length]
    ordered = sorted(lengths)
    report = LengthReport(
        n=len(lengths),
        median=ordered[len(ordered) // 2] if ordered else 0,
        longest=ordered[-1] if ordered else 0,
        too_long=len(lengths) - len(kept),
    )
    if report.too_long > max_dropped_share * len(lengths) or not kept:
        raise ConfigError(
            f"{report.too_long} of {len(lengths)} examples are longer than max_length "
            f"{max_length} tokens (longest {report.longest}); raise max_length, use shorter "
            "or fewer passages, or raise training.max_dropped_share"
        )
    return kept, report
