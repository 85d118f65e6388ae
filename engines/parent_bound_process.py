"""Runs a command for no longer than the program that started it lives.

    python parent_bound_process.py COMMAND…

Standard input is a pipe whose other end the owner alone holds. When it closes, because the owner
closed it or died in whatever way, the command and all it has started (its process group) are asked
to stop, and killed after `GRACE_S`. A command that ends by itself is followed by the rest of its
group: the engine of a killed vLLM server would live on and keep its memory. Standard output is one
line, the command's process id; the exit code is the command's, or 128 + the signal that ended it.

A program of its own, which imports nothing of Branchwise.
"""

import os
import signal
import subprocess
import sys
import threading
import time

GRACE_S = 20.0
"""vLLM needs about ten seconds to release memory shared between its processes."""
LOOK_EVERY_S = 0.05


def main() -> int:
    """Runs the command (see module)."""
    for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(one, lambda number, _: sys.exit(128 + number))
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
    os.read(0, 1)  # nobody writes: this returns when the other end is closed
    _end(group)


def _end(group: int) -> None:
    """Stops every process of a group; returns when none is left."""
    deadline = time.monotonic() + GRACE_S
    wanted = signal.SIGTERM
    while _sent(group, wanted):
        while _sent(group, 0) and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)
        if wanted == signal.SIGKILL:
            return  # what is left now is dead, and only not yet collected
        wanted = signal.SIGKILL


def _sent(group: int, number: int) -> bool:
    """Returns whether a process received the signal; 0 only tests."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
