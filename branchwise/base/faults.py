"""Reports all errors of input files together."""

from .errors import ConfigError
from .terminal_escape import terminal_safe


class Faults:
    """Collects errors of the input, to raise them together."""

    shown = 20

    def __init__(self) -> None:
        self._messages: list[str] = []
        self.count = 0

    def add(self, place: str, what: str) -> None:
        """Adds an error, with its place."""
        self.count += 1
        if self.count <= self.shown:
            self._messages.append(terminal_safe(f"{place}: {what}"))

    def raise_any(self) -> None:
        """Raises the collected errors, if any.

        Raises:
            ConfigError: If there are errors; shows the first 20, one per line, and the number of
                others.
        """
        if not self.count:
            return
        more = self.count - len(self._messages)
        lines = [*self._messages, *([f"… and {more} more"] if more else [])]
        raise ConfigError("\n".join(lines))
