"""Which calls of the questions at work are stored, so that a new call need not ask the disk.

A question's keys are read once, when it is first asked for. Looking every key up in the database
would cost a new call more than storing it: the writing thread has just changed the pages that the
look-up reads, and both threads wait for each other.
"""

import threading
from collections.abc import Callable, Iterable

QUESTIONS = 2048
"""Questions whose keys are kept, more than are ever at work at once: some 20 MB at 100 calls a
question. Keys of an older one are read again when it is asked for again."""


class StoredKeys:
    """Keys by question; what `add` is told of at any time is never forgotten."""

    def __init__(self, read: Callable[[str], Iterable[str]], questions: int = QUESTIONS) -> None:
        """Knows nothing yet.

        Args:
            read: the keys of a question in the database.
            questions: how many questions to keep, the first one asked for going first.
        """
        self._read = read
        self._questions = questions
        self._keys: dict[str, set[str]] = {}
        self._asking = threading.Lock()

    def holds(self, question_id: str, key: str) -> bool:
        """Whether a call of the question is stored."""
        with self._asking:
            known = self._keys.get(question_id)
            return key in (self._load(question_id) if known is None else known)

    def add(self, question_id: str, key: str) -> None:
        """Note a call that is on disk; in any thread."""
        known = self._keys.get(question_id)
        if known is not None:
            known.add(key)

    def _load(self, question_id: str) -> set[str]:
        if len(self._keys) >= self._questions:
            del self._keys[next(iter(self._keys))]
        # There before it is read, so that what is stored meanwhile is added to it.
        known = self._keys[question_id] = set()
        try:
            known.update(self._read(question_id))
        except BaseException:
            del self._keys[question_id]
            raise
        return known
