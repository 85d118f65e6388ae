"""Writes the plots and the tables of a study, with the commands that made them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from branchwise.base import NONE, Sheet, atomic_write_text, make_folder, number, terminal_safe

from .journal import Event
from .study_runner import StudyRunner


@contextmanager
def svg(path: Path, panels: int, width: float, height: float, **shared: bool) -> Iterator[Any]:
    """Yields the axes of panels side by side; writes the file at the end.

    Args:
        shared: Options of `pyplot.subplots`, such as `sharey`.
    """
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    size = {"figsize": (width, height), "layout": "constrained", "squeeze": False}
    figure, axes = pyplot.subplots(1, panels, **size, **shared)
    yield axes[0]
    make_folder(path.parent)
    figure.savefig(path)
    pyplot.close(figure)


def write_sheets(runner: StudyRunner, name: str, sheets: Sequence[Sheet], about: str = "") -> None:
    """Prints the tables; writes them as Markdown with the study's commands, and each as CSV."""
    if about:
        runner.context.log(about)
    for sheet in sheets:
        runner.context.console.print(sheet.text())
        slug = sheet.title.split(" (")[0].lower().replace(" ", "-")
        atomic_write_text(runner.folder / f"{name}-{slug}.csv", sheet.csv())
    title = "All runs started (by all studies with this journal)"
    head = ("command", "attempts", "seconds", "exit code")
    runs = Sheet(title, head, tuple(map(_run_cells, runner.journal.by_command())))
    parts = [f"{terminal_safe(about)}\n"] if about else []
    parts += [sheet.markdown() for sheet in (*sheets, runs)]
    atomic_write_text(runner.folder / f"{name}.md", "\n".join(parts))
    runner.context.log(f"{runner.title}: tables and plot in {runner.folder}")


def _run_cells(events: Sequence[Event]) -> tuple[str, ...]:
    """Returns a row for a command that was started, even if it failed or was repeated."""
    return (
        events[0].command,
        str(sum(event.event == "started" for event in events)),
        number(sum(event.seconds for event in events), 0),
        NONE if events[-1].exit_code is None else str(events[-1].exit_code),
    )
