"""Runs a stage on a terminal of its own, which can be closed like a window."""

import os
import pty
import select
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LEAD = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
"""Program that takes the terminal as its session's and becomes the command."""


class Terminal:
    """A terminal whose output is read and dropped until it is closed."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        self._woken, self._wake = os.pipe()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        """Reads all output, because a full terminal would block the stage."""
        while True:
            ready, _, _ = select.select([self.master, self._woken], [], [])
            if self._woken in ready:
                return
            try:
                os.read(self.master, 1 << 16)
            except OSError:  # the stage has closed it
                return

    def close(self) -> None:
        """Closes the terminal; the kernel sends SIGHUP to its processes."""
        os.write(self._wake, b"x")
        self._reader.join()
        for descriptor in (self.master, self._woken, self._wake):
            os.close(descriptor)


@contextmanager
def on_a_terminal(
    words: Sequence[object], environment: dict[str, str], before: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[bytes], Terminal]]:
    """Runs a stage as session leader on a new terminal, and kills it when the block ends.

    Args:
        words: Arguments of `branchwise`.
        environment: Variables in addition to those of this process.
        before: Words before the command, such as `nohup`.
    """
    terminal = Terminal()
    command = [
        sys.executable,
        "-c",
        LEAD,
        *before,
        sys.executable,
        "-m",
        "branchwise",
        *map(str, words),
    ]
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        stdin=terminal.slave,
        stdout=terminal.slave,
        stderr=terminal.slave,
        start_new_session=True,
    )
    os.close(terminal.slave)
    try:
        yield process, terminal
    finally:
        process.kill()
        process.wait()
