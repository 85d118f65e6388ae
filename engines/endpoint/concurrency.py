"""Limits how many calls an endpoint gets at once: additive growth, one cut per overload."""

from dataclasses import dataclass

FIRST_LIMIT = 32
"""Initial limit on calls in progress, before anything is known about the endpoint."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one call among those in progress.

    Attributes:
        epoch: Number of cuts before the call started.
        probe: Whether the call is a circuit breaker's probe.
    """

    epoch: int
    probe: bool = False


class AdaptiveLimit:
    """A limit on calls in progress, in [1, `most`], that adapts to the endpoint.

    The limit L grows with successes, and only while all L slots are in use. Before the first cut,
    each success adds one (slow start); later, L successes add one. An overload (429, 503) halves
    L once: rejections of calls that started before the cut belong to the same episode. After any
    other failure, L does not grow for the next L successes.

    Attributes:
        most: Upper bound.
        under_way: Number of slots in use.
    """

    def __init__(self, most: int, first: int = FIRST_LIMIT) -> None:
        self.most = most
        self.under_way = 0
        self._limit = float(min(most, first))
        self._cuts = 0
        self._unmoved = 0

    @property
    def limit(self) -> int:
        """Calls that may be in progress now."""
        return int(self._limit)

    @property
    def has_room(self) -> bool:
        return self.under_way < self.limit

    def take(self, *, probe: bool = False) -> Slot:
        """Counts a call as in progress; the caller checks that there is room."""
        self.under_way += 1
        return Slot(self._cuts, probe)

    def give_back(self) -> None:
        """Counts a call as ended. Record its outcome first."""
        self.under_way -= 1

    def succeeded(self, slot: Slot) -> None:
        """Records that the call in `slot` succeeded."""
        if self._unmoved:
            self._unmoved -= 1
        elif slot.epoch == self._cuts and not self.has_room:
            step = 1.0 / self._limit if self._cuts else 1.0
            self._limit = min(float(self.most), self._limit + step)

    def overloaded(self, slot: Slot) -> bool:
        """Records that the call in `slot` was rejected. Returns whether a new episode starts."""
        if slot.epoch < self._cuts:
            return False
        self._cuts += 1
        self._limit = max(1.0, self._limit / 2)
        return True

    def record_error(self) -> None:
        """Records any other failure of a call."""
        self._unmoved = self.limit
