"""Writes the tables of a study, with the commands that made them."""

from collections.abc import Sequence

from analysis.table import NONE, Sheet, number
from base.atomic import atomic_write_text
from base.terminal_escape import inert
from runs.studies.study_runner import StudyRunner


def write_sheets(runner: StudyRunner, name: str, sheets: Sequence[Sheet], about: str = "") -> None:
    """Prints the tables; writes them as Markdown with the study's commands, and each as CSV."""
    if about:
        runner.context.log(about)
    for sheet in sheets:
        runner.context.console.print(sheet.text())
        slug = sheet.title.split(" (")[0].lower().replace(" ", "-")
        atomic_write_text(runner.folder / f"{name}-{slug}.csv", sheet.csv())
    parts = [f"{inert(about)}\n"] if about else []
    parts += [sheet.markdown() for sheet in (*sheets, run_sheet(runner))]
    atomic_write_text(runner.folder / f"{name}.md", "\n".join(parts))
    runner.context.log(f"{runner.title}: tables and plot in {runner.folder}")


def run_sheet(runner: StudyRunner) -> Sheet:
    """Returns every started command, including failed and repeated ones."""
    rows = tuple(
        (
            one.command,
            str(one.attempts),
            number(one.seconds, 0),
            NONE if one.exit_code is None else str(one.exit_code),
        )
        for one in runner.journal.started()
    )
    title = "All runs started (by all studies with this journal)"
    return Sheet(title, ("command", "attempts", "seconds", "exit code"), rows)
