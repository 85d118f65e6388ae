"""Tables of a workflow, written beside its journal with the commands behind them."""

from collections.abc import Sequence

from analysis.sheet import NONE, Sheet, number
from runs.workflow import Lab
from storage.atomic import atomic_write_text
from storage.inert import inert


def write_sheets(lab: Lab, name: str, sheets: Sequence[Sheet], about: str = "") -> None:
    """Print the tables; Markdown with the commands behind them, and a CSV for each."""
    if about:
        lab.call.say(about)
    for sheet in sheets:
        lab.call.console.print(sheet.text())
        slug = sheet.title.split(" (")[0].lower().replace(" ", "-")
        atomic_write_text(lab.folder / f"{name}-{slug}.csv", sheet.csv())
    parts = [f"{inert(about)}\n"] if about else []
    parts += [sheet.markdown() for sheet in (*sheets, run_sheet(lab))]
    atomic_write_text(lab.folder / f"{name}.md", "\n".join(parts))
    lab.call.say(f"{lab.title}: tables and plot in {lab.folder}")


def run_sheet(lab: Lab) -> Sheet:
    """Every command that was started, failed and repeated ones included."""
    rows = tuple(
        (
            one.command,
            str(one.attempts),
            number(one.seconds, 0),
            NONE if one.exit_code is None else str(one.exit_code),
        )
        for one in lab.journal.started()
    )
    title = "All runs started (by whatever study keeps this journal)"
    return Sheet(title, ("command", "attempts", "seconds", "exit code"), rows)
