"""Runs a command that ends when the program that started it ends.

    python parent_bound_process.py COMMAND…

Standard input is a pipe whose other end only the owner holds. It closes when the owner closes it
or dies for any reason. Then the command and its whole process group get SIGTERM, and SIGKILL after
`GRACE_S`. If the command ends by itself, the rest of its group is stopped as well: the engine of a
killed vLLM server would otherwise keep running and keep its memory. Standard output is one line,
the command's process id. The exit code is the command's, or 128 + the signal that ended it.

This is a separate program; it imports nothing from Branchwise.
"""

import os
import signal
import subprocess
import sys
import threading
import time

GRACE_S = 20.0
"""Seconds to stop: vLLM needs about ten to release memory shared between its processes."""
LOOK_EVERY_S = 0.05


def main() -> int:
    """Runs the command (see module)."""
    for ending in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    child = subprocess.Popen(
        sys.argv[1:], stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
    )
    try:
        print(child.pid, flush=True)
        threading.Thread(target=_follow_owner, args=(child.pid,), daemon=True).start()
        code = child.wait()
    finally:
        _end(child.pid)
    return code if code >= 0 else 128 - code


def _follow_owner(group: int) -> None:
    os.read(0, 1)  # nothing is ever written: returns when the other end closes
    _end(group)


def _end(group: int) -> None:
    """Stops every process of a group; returns when none is left or all were killed."""
    deadline = time.monotonic() + GRACE_S
    number = signal.SIGTERM
    while _sent(group, number):
        while _sent(group, 0) and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)
        if number == signal.SIGKILL:
            return  # remaining processes are dead, but not yet reaped
        number = signal.SIGKILL


def _sent(group: int, number: int) -> bool:
    """Returns whether a process received the signal; 0 only tests."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
