"""Entry point of the command `branchwise`; handles Ctrl-C before it imports the rest."""

from pipelines.interrupts import exit_on_interrupt


def main() -> None:
    """Runs `branchwise`."""
    exit_on_interrupt()
    from pipelines.cli import main

    main()
