"""Reads the pairs of a run, or of one of its relabellings."""

from base.errors import ConfigError
from runs.folder import Run
from runs.stage import checked_name
from storage.manifest import load_manifest
from storage.parts import question_ids, read_parts
from storage.records import Pair
from storage.schemas import table_to_records


def pairs_table(label: str | None = None) -> str:
    """Returns the name of the table of pairs, of the run itself or of a relabelling."""
    return f"relabelled/{checked_name(label)}/pairs" if label else "pairs"


def check_relabelling(run: Run, label: str | None) -> None:
    """Raises ConfigError if the run lacks a relabelling of this name."""
    if label and not load_manifest(run.folder).of(pairs_table(label)):
        raise ConfigError(
            f"--label {label}: {run.folder} has no such relabelling. Make it with "
            f"`branchwise relabel --label {label}`, or leave --label out"
        )


def pairs_of(run: Run, table: str) -> list[Pair]:
    """Returns the pairs of a run.

    Raises:
        ConfigError: If the table is empty, or is a relabelling that lacks later questions.
    """
    _check_relabelling_current(run, table)
    rows = read_parts(run.folder, table)
    if table != pairs_table():
        # A tree's part depends on the order of finishing, which must not affect a training on
        # another labelling.
        rows = rows.sort_by("tree_id")
    pairs = table_to_records(rows, Pair)
    if not pairs:
        raise ConfigError(
            f"{run.folder}: no {table} to train on; annotate more questions, or relabel with a "
            "smaller pairs.min_gap or pairs.min_outcomes (rewards.schedule `none` leaves no pair)"
        )
    return pairs


def _check_relabelling_current(run: Run, table: str) -> None:
    folder, _, _ = table.rpartition("/")
    if not folder or not load_manifest(run.folder).of(table):
        return
    since = question_ids(run.folder, "trees") - question_ids(run.folder, f"{folder}/labels")
    if since:
        raise ConfigError(
            f"{run.folder}: {len(since)} questions were annotated after {folder} was made; rerun "
            f"`branchwise relabel --label {folder.rpartition('/')[2]}` with its settings"
        )
