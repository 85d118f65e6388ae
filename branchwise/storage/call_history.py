"""Reads what earlier work cost from a run's ledger, without a lock and without writing."""

import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .ledger_check import check_schema, read_only_uri, read_rows
from .ledger_rows import SUMS, Totals
from .ledger_writer import write_error

PAUSE_S = 60.0
"""A longer gap between calls is a pause, such as the time between two attempts at a run."""
_TRAJECTORY = "question_id, policy_digest, substr(path, 1, instr(path, '+') - 1), draw"
_SUMMED = len(fields(Totals))


@dataclass(frozen=True, slots=True)
class CallHistory:
    """Costs of earlier questions or trajectories.

    Attributes:
        totals: Totals of each question or trajectory, by the role of the model.
        calls_per_s: Calls per second while calls were in flight; None if too few to measure.
        calls: Calls of the whole ledger, of all stages.
    """

    totals: tuple[Mapping[str, Totals], ...]
    calls_per_s: float | None
    calls: int


def read_call_history(
    ledger: Path, paths: Sequence[str], finished: set[str] | None = None
) -> CallHistory | None:
    """Reads the successful calls with some paths.

    Args:
        paths: Patterns of ledger paths, such as `tree/*`.
        finished: Ids of the questions to read, with one total per question. None reads all
            questions, with one total per trajectory.

    Returns:
        The history, or None if there is no such call.

    Raises:
        StorageError: If the file is damaged, not a ledger, or of another version.
    """
    if not ledger.exists():
        return None
    condition = f"error IS NULL AND ({' OR '.join(['path GLOB ?'] * len(paths))})"
    unit = _TRAJECTORY if finished is None else "question_id"
    try:
        with closing(sqlite3.connect(read_only_uri(ledger), uri=True)) as reading:
            if check_schema(reading, ledger):
                return None
            sums = f"SELECT {SUMS}, role, {unit} FROM calls WHERE {condition} GROUP BY {unit}, role"
            rows = read_rows(reading, ledger, sums, tuple(paths))
            ends = "SELECT 86400 * julianday(at), latency_s FROM calls WHERE " + condition
            ended = read_rows(reading, ledger, ends, tuple(paths))
            ((calls,),) = read_rows(reading, ledger, "SELECT count(*) FROM calls")
    except sqlite3.Error as error:
        raise write_error("read", ledger, error) from error
    totals: defaultdict[tuple[Any, ...], dict[str, Totals]] = defaultdict(dict)
    for row in rows:
        values, role, key = row[:_SUMMED], row[_SUMMED], row[_SUMMED + 1 :]
        if finished is None or key[0] in finished:
            totals[key][role] = Totals(*values)
    if not totals:
        return None
    return CallHistory(tuple(totals.values()), calls_per_second(ended), calls)


def calls_per_second(ended: Sequence[tuple[float, float]]) -> float | None:
    """Returns calls per second, without pauses.

    Args:
        ended: End and duration of each call, in seconds.
    """
    active, until = 0.0, None
    for start, end in sorted((end - latency, end) for end, latency in ended):
        begin = start if until is None or start - until >= PAUSE_S else until
        active += max(end - begin, 0.0)
        until = end if until is None else max(until, end)
    return len(ended) / active if active > 0 else None
