"""Circuit breaker: stops calls to a failing endpoint until it recovers."""

import math


class CircuitBreaker:
    """Opens after enough failures in a row; while open, allows one probe at a time.

    Pauses before probes double from `first_pause_s` to at most `longest_pause_s`. Any answer
    closes the breaker. Times are in seconds, by the caller's clock.

    Attributes:
        is_open: Whether only probes may start.
        probe_at: Earliest start of the next probe; in the past while the breaker is closed.
        probing: Whether a probe is in progress.
        fault: Message of the last failure; empty without one.
        given_up: Whether all calls have failed for `patience_s`.
    """

    def __init__(self, first_pause_s: float, longest_pause_s: float, patience_s: float) -> None:
        self.is_open = False
        self.probe_at = -math.inf
        self.probing = False
        self.fault = ""
        self.given_up = False
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self.patience_s = patience_s
        self._pause_s = first_pause_s
        self._failures = 0
        self._failing_since = 0.0
        self._failed_at = -math.inf

    def record_success(self, now: float) -> float | None:
        """Records a success.

        Returns the seconds for which the endpoint failed, if the success closes the breaker.
        """
        failed_for_s = now - self._failing_since if self.is_open else None
        self.is_open, self.given_up, self.probing = False, False, False
        self.probe_at, self.fault, self._failures = -math.inf, "", 0
        return failed_for_s

    def record_failure(
        self, fault: str, now: float, threshold: int, *, probe: bool = False
    ) -> bool:
        """Records a failure. Returns whether it opens the breaker.

        Args:
            fault: Message of the failure.
            now: Current time.
            threshold: Failures in a row that open the breaker.
            probe: Whether the probe failed, which makes the next pause longer.
        """
        self._count(now)
        self.fault = fault
        if self.is_open:
            if probe:
                self._pause_s = min(2 * self._pause_s, self._longest_pause_s)
                self.probe_at = now + self._pause_s
            return False
        if self._failures < threshold:
            return False
        self.is_open = True
        self._pause_s = self._first_pause_s
        self.probe_at = now + self._pause_s
        return True

    def _count(self, now: float) -> None:
        # After a gap longer than `patience_s`, start counting from zero: no calls were made.
        if not self._failures or now - self._failed_at > self.patience_s:
            self._failures, self._failing_since = 0, now
        self._failures += 1
        self._failed_at = now
        # One or two failures are not enough evidence, however far apart they are.
        patient = self._failures <= 2 or now - self._failing_since < self.patience_s
        self.given_up = self.given_up or not patient
