"""Memory that ran out: the many ways in which libraries say so, and the one in which we do."""

import errno
import logging
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.abc import MetaPathFinder
from typing import NoReturn, TextIO

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
"""What stands in the errors of OpenVINO, torch, SQLite, DuckDB, the loader and Python's threads."""
OF_SQLITE = frozenset({3082, 5386})
"""Its extended codes SQLITE_IOERR_NOMEM and SQLITE_IOERR_SHMMAP: it maps a file of its own."""
LOCAL = (RuntimeError, OSError, ImportError, SystemError)
"""What libraries in this process raise, as opposed to clients of somebody else's server."""
NOT_MEANT = "static TLS"
"""The loader has no room for one library's thread variables, however much memory there is."""
ADVICE = (
    "Free some memory, or ask for less at once: limits.max_questions_in_flight, limits.cache_gib "
    "(the embedded engine), fewer --workers, training.dpo.micro_batch. Then run the same command "
    "again: it goes on with what was stored"
)

SCARCE = 4 << 30
"""Bytes of addresses from which on every library may have the threads and pools that it likes."""
SPARING = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "ARROW_IO_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
WANTED = {"torch": 2 << 30}
"""Bytes of addresses below which a module's own code crashes."""
RESERVED = 1 << 20
"""Bytes that are kept for telling that there are no more, where there is a tight limit."""
_RESERVE = bytearray()
_M_ARENA_MAX = -8  # of glibc's malloc.h: one heap for all threads, not 64 MiB for each
LEAST = 512 << 20
"""Bytes of addresses without which Python's libraries cannot be loaded."""


def exhausted(error: BaseException) -> str | None:
    """What said that memory ran out, an error or the deepest of its causes; None if nothing did.

    What a server says of its own memory arrives as errors of its client, and is not meant.
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
    """The error, those of a group, and what each came from."""
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
    """Its name, and the line of its text that says it; a `MemoryError` has mostly no text."""
    lines = str(error).splitlines()
    told = next((line for line in lines if any(said in line.lower() for said in SAID)), "")
    if isinstance(error, MemoryError):
        told = told or (lines[0] if lines else "")
    name = type(error).__name__
    return f"{name}: {told.strip()[:200]}" if told else name


def is_news(record: logging.LogRecord) -> bool:
    """A filter for asyncio's log, which prints tracebacks of what we tell in our own words."""
    return not (record.exc_info and record.exc_info[1] and exhausted(record.exc_info[1]))


def told(said: str) -> str:
    """The message.

    Args:
        said: by `exhausted`.
    """
    readable = "".join(char if char.isprintable() else " " for char in said)
    return f"error: memory ran out ({readable}). {_limit()}{ADVICE}"


def _most() -> int | None:
    """Bytes of addresses that this process may have; None: as many as there are."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if most == resource.RLIM_INFINITY else most


def _limit() -> str:
    most = _most()
    if most is None:
        return ""
    return (
        f"This process may use {most / 2**30:.1f} GiB of addresses (`ulimit -v`), of which "
        "libraries take more than they fill: raise that limit first. "
    )


def keep_within(into: TextIO) -> None:
    """Prepare for a tight limit on addresses, if there is one, before libraries are imported.

    Threads and pools reserve far more than they fill. Those that get none crash or hang, in code
    that knows no exceptions; so there are few of them.
    """
    most = _most()
    if most is None or most >= SCARCE:
        return
    for name, value in SPARING.items():
        os.environ.setdefault(name, value)
    import ctypes

    with suppress(OSError, AttributeError):  # another library than GNU's
        ctypes.CDLL("libc.so.6").mallopt(_M_ARENA_MAX, 1)
    if most < LEAST:
        leave(MemoryError("too little even to begin"), into)
    sys.meta_path.insert(0, _Refusing(most))
    _RESERVE.extend(bytes(RESERVED))


class _Refusing(MetaPathFinder):
    """Refuses to import what would crash for want of addresses."""

    def __init__(self, most: int) -> None:
        self._most = most

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        """Find nothing, like any finder that has no such module.

        Raises:
            MemoryError: the module wants more addresses than there are.
        """
        wanted = WANTED.get(name, 0)
        if self._most < wanted:
            raise MemoryError(f"not enough memory for {name}, which takes {wanted / 2**30:.0f} GiB")


def leave(error: BaseException, into: TextIO) -> NoReturn:
    """Tell of memory that ran out, and end at once.

    Libraries would want memory for their own ends, and crash.
    """
    _RESERVE.clear()
    try:
        print(told(exhausted(error) or "MemoryError"), file=into)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except MemoryError:
        os.write(into.fileno(), b"error: memory ran out, even for saying so\n")
    finally:
        os._exit(1)
