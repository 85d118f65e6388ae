"""Entry point of a stage that a study starts: the process ends with the study.

python -m branchwise.cli.child <pid of the study> <stage> …
"""

import ctypes
import os
import signal
import sys

from .entry import exit_on_interrupt

PR_SET_PDEATHSIG = 1
"""Option of prctl(2)."""


def exit_with_parent(parent: int) -> None:
    """Have SIGTERM sent here as soon as the parent is gone, or two would train in one folder."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux only
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it was gone before it could be watched
        sys.exit(130)


if __name__ == "__main__":
    exit_on_interrupt()
    exit_with_parent(int(sys.argv[1]))
    from .command_line import main

    main(sys.argv[2:])
