"""Seams: points at which a test makes a stage's process die or run out of a resource.

The child process plants a seam by wrapping functions of the product or of its libraries; the
product needs no hooks. The test sends the `Seam` to the child as JSON.
"""

import inspect
import os
import resource
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from fnmatch import fnmatch
from functools import partial, wraps
from importlib import import_module
from itertools import count, cycle
from pathlib import Path
from typing import Any, Literal, Self

At = Literal["write", "half", "rename", "sql", "put", "close", "clock"]
When = Literal["before", "after"]
Then = Literal["die", "fill", "shrink", "starve"]
Passing = Callable[[str], None]

BALLAST = "ballast"
"""Name of the file that fills the disk; removing it frees the space."""


@dataclass(frozen=True)
class Seam:
    """The `nth` time that something whose name matches `what` reaches the point `at`.

    Attributes:
        at: Kind of operation (see `PLANTED`).
        what: Pattern for the last two parts of a path, or for an SQL statement.
        when: Before or after the operation.
        nth: Number of the matching operation, from 1.
        then: `die` by SIGKILL, `fill` the disk of `folder`, `shrink` the limit on file size to
            1 KB, or `starve` the process of memory.
        folder: Folder on the disk to fill.
    """

    at: At
    what: str = "*"
    when: When = "before"
    nth: int = 1
    then: Then = "die"
    folder: str = ""

    def __str__(self) -> str:
        return f"{self.when} {self.at} {self.what} {self.nth}"


def plant(seam: Seam) -> None:
    """Makes this process carry out `seam.then` when it reaches the seam."""
    numbers = count(1)

    def passing(name: str) -> None:
        if fnmatch(name, seam.what) and next(numbers) == seam.nth:
            _THEN[seam.then](seam)

    PLANTED[seam.at](seam.when, passing)


def _die(_: Seam) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _fill(seam: Seam) -> None:
    """Takes every free block of the disk, so that the kernel refuses further writes."""
    ballast = os.open(Path(seam.folder) / BALLAST, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with suppress(OSError):
        while True:
            os.write(ballast, bytes(1 << 16))
    os.close(ballast)


def _shrink(_: Seam) -> None:
    """Limits files to 1 KB; the kernel then returns "file too large" instead of a signal."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))


def _starve(_: Seam) -> None:
    """Limits this process to the memory that it has already taken."""
    with Path("/proc/self/statm").open() as sizes:
        taken = int(sizes.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken, resource.RLIM_INFINITY))


_THEN: dict[Then, Callable[[Seam], None]] = {
    "die": _die,
    "fill": _fill,
    "shrink": _shrink,
    "starve": _starve,
}


def _around(owner: Any, name: str, label: Callable[..., str]) -> Callable[[When, Passing], None]:
    """Returns a function that plants a seam around a function or coroutine function of `owner`."""

    def planted(when: When, passing: Passing) -> None:
        inner = getattr(owner, name)

        @wraps(inner)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if when == "before":
                passing(label(*args, **kwargs))
            result = inner(*args, **kwargs)
            if inspect.iscoroutine(result):
                return awaited(result, label(*args, **kwargs))
            if when == "after":
                passing(label(*args, **kwargs))
            return result

        async def awaited(coroutine: Any, named: str) -> Any:
            result = await coroutine
            if when == "after":
                passing(named)
            return result

        setattr(owner, name, wrapped)

    return planted


def _named(path: Path) -> str:
    return "/".join(path.parts[-2:])


def _half_written(_: When, passing: Passing) -> None:
    """Plants a seam in the middle of writing a file, when half of it is written."""
    inner = Path.write_bytes

    def wrapped(path: Path, data: bytes) -> int:
        with path.open("wb", buffering=0) as file:
            file.write(data[: len(data) // 2])
            passing(_named(path))
        return inner(path, data)

    Path.write_bytes = wrapped  # type: ignore[method-assign, assignment]


def _statements(when: When, passing: Passing) -> None:
    class Seamed(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if when == "before":
                passing(sql)
            cursor = super().execute(sql, *values)
            if when == "after":
                passing(sql)
            return cursor

    sqlite3.connect = partial(sqlite3.connect, factory=Seamed)  # type: ignore[assignment]


def _of_ledger(name: str) -> Callable[[When, Passing], None]:
    def planted(when: When, passing: Passing) -> None:
        from branchwise.storage.ledger import Ledger

        _around(Ledger, name, lambda *_, **__: name)(when, passing)

    return planted


def _jumping_clock(_: When, __: Passing) -> None:
    """Makes the wall clock jump by hours at each reading; the monotonic clock is unchanged."""
    jumps = cycle((0, 5000, -49, 26))
    inner = time.time

    class Jumping(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + timedelta(hours=next(jumps))

    time.time = lambda: inner() + 3600 * next(jumps)
    for module in (
        "branchwise.engines.ledgered",
        "branchwise.runs.environment",
        "branchwise.types",
    ):
        assert import_module(module).datetime is datetime
        setattr(import_module(module), "datetime", Jumping)  # noqa: B010


PLANTED: dict[At, Callable[[When, Passing], None]] = {
    "write": _around(Path, "write_bytes", lambda path, _: _named(path)),
    "half": _half_written,
    "rename": _around(Path, "replace", lambda _, target: _named(target)),
    "sql": _statements,
    "put": _of_ledger("put"),
    "close": _of_ledger("close"),
    "clock": _jumping_clock,
}
