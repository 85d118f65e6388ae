"""Progress messages of a long loop, for logs and terminals."""

import time
from dataclasses import dataclass, field

from .text import Log

EVERY_S = 30.0


@dataclass
class StepMessages:
    """Logs how far a loop is and how long it still takes, at most every half minute.

    Attributes:
        unit: What the loop counts, such as "passages encoded".
        before: Steps that an earlier attempt made; they do not count towards the rate.
    """

    log: Log
    unit: str
    total: int
    before: int = 0
    started: float = field(default_factory=time.monotonic)
    logged: float = 0.0

    def report(self, finished: int, more: str = "") -> None:
        """Logs a message if half a minute has passed since the last one.

        Args:
            finished: Finished steps, those of earlier attempts included.
        """
        seconds = time.monotonic() - self.started
        if seconds - self.logged < EVERY_S or not self.total:
            return
        self.logged = seconds
        steps = finished - self.before
        steps_left = self.total - finished
        time_left = format_duration(seconds / steps * steps_left if steps > 0 else None)
        self.log(
            f"{finished:,} of {self.total:,} {self.unit} ({finished / self.total:.0%}), "
            f"time left {time_left}{more}"
        )


def format_duration(seconds: float | None) -> str:
    """Returns minutes and seconds, with hours if there are any; a dash for None."""
    if seconds is None:
        return "–"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
