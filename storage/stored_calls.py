"""The stored calls of the questions in progress, so that a new call needs no disk read.

All rows of a question are read and checked together, at its first lookup. A lookup per key would
cost a new call more than storing it: the writing thread has just changed the pages that the lookup
reads, and both threads wait for each other. A call is kept until it is taken, which a replay does
once.
"""

import threading
from collections.abc import Callable, Mapping

from storage.calls import Call

QUESTIONS = 2048
"""Number of questions whose keys are kept: about 20 MB at 100 calls per question. It exceeds the
questions in progress; rows of an older question are reread at its next lookup.
"""


class StoredCalls:
    """Calls by question, including all calls that `add` received."""

    def __init__(
        self, read: Callable[[str], Mapping[str, Call]], questions: int = QUESTIONS
    ) -> None:
        """Creates an empty cache.

        Args:
            read: Function that returns the calls of a question in the database, by key.
            questions: Number of questions to keep; the oldest one is dropped first.
        """
        self._read = read
        self._questions = questions
        self._calls: dict[str, dict[str, Call | None]] = {}
        self._loading: str | None = None
        self._asking = threading.Lock()

    def holds(self, question_id: str, key: str) -> bool:
        """Returns whether a call of the question is stored."""
        with self._asking:
            known = self._calls.get(question_id)
            return key in (self._load(question_id) if known is None else known)

    def take(self, question_id: str, key: str) -> Call | None:
        """Returns a call that was read with its question; None if already taken, or added later."""
        known = self._calls.get(question_id, {})
        call = known.get(key)
        if call is not None:
            known[key] = None
        return call

    def add(self, question_id: str, key: str) -> bool:
        """Records a call that is now on disk; any thread may do so.

        Returns:
            Whether the call was known to be missing.
        """
        known = self._calls.get(question_id)
        if known is None or key in known:
            return False
        known[key] = None
        return question_id != self._loading

    def _load(self, question_id: str) -> dict[str, Call | None]:
        # Threads: lookups run on readers, `add` on the ledger's writer. Invariant: a key that is on
        # disk is in `_calls[question]` if that question has been loaded. The empty dict is
        # published before the read, so a call committed during the read is either in the result set
        # or added by `add`.
        if len(self._calls) >= self._questions:
            del self._calls[next(iter(self._calls))]
        self._loading = question_id
        known: dict[str, Call | None] = {}
        self._calls[question_id] = known
        try:
            known.update(self._read(question_id))
        except BaseException:
            del self._calls[question_id]
            raise
        finally:
            self._loading = None
        return known
