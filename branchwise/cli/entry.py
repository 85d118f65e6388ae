"""Entry point of the command `branchwise`; handles Ctrl-C before it imports the rest.

By default, Python answers Ctrl-C during an import with a traceback.
"""

import os
import signal


def main() -> None:
    """Runs `branchwise`."""
    exit_on_interrupt()
    from .command_line import main

    main()


def exit_on_interrupt() -> None:
    """Lets Ctrl-C end this process with code 130 until `raise_on_interrupt`.

    A process that ignores the signal (a background job of a script) continues to ignore it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def raise_on_interrupt() -> None:
    """Lets Ctrl-C raise KeyboardInterrupt again, as the stages expect."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(signum: int, frame: object) -> None:
    # An exception could be lost or replaced by another one in the imports that it interrupts.
    os._exit(130)
