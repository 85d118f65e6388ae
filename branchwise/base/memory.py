"""Recognises out-of-memory errors of many libraries and turns them into one of ours."""

import errno
from collections.abc import Iterator

PHRASES = (
    "bad_alloc",
    "can't allocate memory",
    "can't start new thread",
    "failed to allocate",
    "out of memory",
)
"""Texts of RuntimeErrors of OpenVINO, torch and Python's threads when memory runs out."""
OF_SQLITE = frozenset({3082, 5386})
"""SQLite's extended codes SQLITE_IOERR_NOMEM and SQLITE_IOERR_SHMMAP (it maps its own file)."""
TYPES = frozenset({"OutOfMemoryException", "OutOfMemoryError"})
"""Exceptions of DuckDB and torch. Those of numpy and pyarrow are MemoryErrors."""
ADVICE = (
    "Free some memory, or reduce one of these: limits.max_questions_in_flight, limits.kv_cache_gib "
    "(the embedded engine), --workers, micro_batch or micro_tokens of the training. Then rerun the "
    "same command to resume"
)


def out_of_memory_message(error: BaseException) -> str | None:
    """Returns the out-of-memory message in `error` or the deepest of its causes, or None.

    Ignores out-of-memory errors of a server, which its client raises as other errors.
    """
    causes = [cause for cause in _chain(error) if _is_out_of_memory(cause)]
    return _first_line(causes[-1]) if causes else None


def _is_out_of_memory(error: BaseException) -> bool:
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ in TYPES
        or getattr(error, "errno", None) == errno.ENOMEM
        or getattr(error, "sqlite_errorcode", None) in OF_SQLITE
        or (isinstance(error, RuntimeError) and _has_phrase(str(error)))
    )


def _has_phrase(text: str) -> bool:
    return any(phrase in text.lower() for phrase in PHRASES)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields the error, the members of a group, and the causes of each."""
    waiting, visited_ids = [error], set[int]()
    while waiting:
        error = waiting.pop()
        if id(error) in visited_ids:
            continue
        visited_ids.add(id(error))
        yield error
        context = None if error.__suppress_context__ else error.__context__
        waiting += [cause for cause in (context, error.__cause__) if cause is not None]
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions


def _first_line(error: BaseException) -> str:
    """Returns the error's type and the relevant line of its text, if there is any."""
    lines = str(error).splitlines()
    line = next(filter(_has_phrase, lines), lines[0] if lines else "").strip()[:200]
    return ": ".join(filter(None, (type(error).__name__, line)))


def format_memory_error(problem: str) -> str:
    """Returns the error message for a person, with advice."""
    readable = "".join(char if char.isprintable() else " " for char in problem)
    return f"error: memory ran out ({readable}). {ADVICE}"
