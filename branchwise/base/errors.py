"""Errors, typed by the boundary that was crossed, and a collector of errors in input files.

A message names the place, the problem and the remedy. Failures of single questions are rows
(`types.Failure`), not exceptions that end a run.
"""

from .terminal_escape import terminal_safe


class BranchwiseError(Exception):
    """Base of every error that Branchwise raises on purpose.

    Attributes:
        attempts: Number of attempts before the error was raised.
    """

    attempts: int = 1


class ConfigError(BranchwiseError):
    """The configuration or an input file cannot be used (exit code 2)."""


class EndpointError(BranchwiseError):
    """A model endpoint refused, failed, or returned an unusable reply.

    Attributes:
        fatal: Whether the run cannot continue with this endpoint (bad key, no such model); False
            for a fault of a single call.
    """

    def __init__(self, message: str, *, fatal: bool = False, attempts: int = 1) -> None:
        super().__init__(message)
        self.fatal = fatal
        self.attempts = attempts


class ServerLost(EndpointError):
    """A server of a fleet does not answer for now, so another one takes its calls.

    Attributes:
        ended: Whether its process ended during the call.
    """

    def __init__(self, message: str, *, attempts: int = 1, ended: bool = False) -> None:
        super().__init__(message, fatal=True, attempts=attempts)
        self.ended = ended


class TokenDrift(EndpointError):
    """A server read other prompt tokens than it was sent, so its reply continues another text."""


class RetrievalError(BranchwiseError):
    """The index or the search server could not answer."""


class JudgeError(BranchwiseError):
    """The judge's reply could not be read as a score in [0, 1]."""


class BudgetExceeded(BranchwiseError):
    """A money, token or time limit was reached; the run can be resumed (exit code 3)."""


class TrainingError(BranchwiseError):
    """A training cannot continue: gradients are not finite, or the engine serves other weights."""


class StorageError(BranchwiseError):
    """A file of the run is missing, damaged, or belongs to another run."""


class Faults:
    """Collects errors of the input, to raise them together."""

    shown = 20

    def __init__(self) -> None:
        self._messages: list[str] = []
        self.count = 0

    def add(self, place: str, problem: str) -> None:
        """Adds an error, with its place."""
        self.count += 1
        if self.count <= self.shown:
            self._messages.append(terminal_safe(f"{place}: {problem}"))

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
