"""Recognises out-of-memory errors of many libraries and turns them into one of ours."""

import errno
from collections.abc import Iterator

SAID = (
    "bad_alloc",
    "bad allocation",
    "cannot allocate memory",
    "can't allocate memory",
    "can't start new thread",
    "failed to allocate",
    "failed to launch",
    "failed to map segment",
    "not enough memory",
    "out of memory",
    "unable to allocate",
)
"""Texts in out-of-memory errors of OpenVINO, torch, SQLite, DuckDB, the loader and Python's
threads.
"""
OF_SQLITE = frozenset({3082, 5386})
"""SQLite's extended codes SQLITE_IOERR_NOMEM and SQLITE_IOERR_SHMMAP (it maps its own file)."""
LOCAL = (RuntimeError, OSError, ImportError, SystemError)
"""Errors of libraries in this process, as opposed to clients of a server."""
NOT_MEANT = "static TLS"
"""The loader lacks room for a library's thread variables, which is not a lack of memory."""
ADVICE = (
    "Free some memory, or reduce one of these: limits.max_questions_in_flight, limits.kv_cache_gib "
    "(the embedded engine), --workers, micro_batch or micro_tokens of the training. Then rerun the "
    "same command to resume"
)


def out_of_memory_message(error: BaseException) -> str | None:
    """Returns the out-of-memory message in `error` or the deepest of its causes, or None.

    Ignores out-of-memory errors of a server, which its client raises as other errors.
    """
    meant = [one for one in _chain(error) if _is_meant(one)]
    return _first_line(meant[-1]) if meant else None


def _is_meant(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryException":
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    if getattr(error, "sqlite_errorcode", 0) in OF_SQLITE:
        return True
    text = str(error).lower()
    local = isinstance(error, LOCAL) or type(error).__module__.startswith("pyarrow")
    return local and NOT_MEANT.lower() not in text and any(said in text for said in SAID)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields the error, the members of a group, and the causes of each."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        context = None if one.__suppress_context__ else one.__context__
        waiting += [cause for cause in (context, one.__cause__) if cause is not None]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions


def _first_line(error: BaseException) -> str:
    """Returns the error's type and the relevant line of its text, if there is any."""
    lines = str(error).splitlines()
    found = next((line for line in lines if any(said in line.lower() for said in SAID)), "")
    if isinstance(error, MemoryError):
        found = found or (lines[0] if lines else "")
    name = type(error).__name__
    return f"{name}: {found.strip()[:200]}" if found else name


def format_memory_error(said: str) -> str:
    """Returns the error message for a person, with advice."""
    readable = "".join(char if char.isprintable() else " " for char in said)
    return f"error: memory ran out ({readable}). {ADVICE}"
