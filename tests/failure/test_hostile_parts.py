"""Tables that somebody made to look committed: other columns, other types, trees that are none.

A manifest can be written with any hash, so a part that fits it may still hold anything.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from durable import World

from storage.manifest import add_parts, load_manifest

pytestmark = pytest.mark.failure

PARTS = ("trees/part-00001.parquet", "pairs/part-00001.parquet", "questions.parquet")
READERS: dict[str, tuple[str, ...]] = {
    "inspect": (),
    "relabel": (),
    "annotate": (),
    "diagnose": ("--no-model",),
    "train-dpo": ("--dry-run",),
    "train-sft": ("--dry-run",),
}


def without_questions(table: pa.Table) -> pa.Table:
    return table.drop_columns(["question_id"])


def foreign(table: pa.Table) -> pa.Table:
    return pa.table({"name": ["x"] * 3})


def as_bytes(table: pa.Table) -> pa.Table:
    return pa.table({name: [b"\xff"] * 3 for name in table.column_names})


def as_numbers(table: pa.Table) -> pa.Table:
    return pa.table({name: [-1] * 3 for name in table.column_names})


def as_lists(table: pa.Table) -> pa.Table:
    return pa.table({name: [[{"a": 1}]] * 3 for name in table.column_names})


def empty_values(table: pa.Table) -> pa.Table:
    return pa.Table.from_pylist([{}] * 3, schema=table.schema)


def twice(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table, table])


def a_column_twice(table: pa.Table) -> pa.Table:
    return table.append_column("question_id", table["question_id"])


def own_parents(table: pa.Table) -> pa.Table:
    return _with(table, "parent_id", table["node_id"]) if "node_id" in table.schema.names else table


def lost_parents(table: pa.Table) -> pa.Table:
    lost = pa.array([7777] * table.num_rows, pa.int32())
    return _with(table, "parent_id", lost) if "parent_id" in table.schema.names else table


def other_questions(table: pa.Table) -> pa.Table:
    return _with(table, "question_id", pa.array(["unheard of"] * table.num_rows))


def _with(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, values)


FORGERIES = (
    without_questions,
    foreign,
    as_bytes,
    as_numbers,
    as_lists,
    empty_values,
    twice,
    a_column_twice,
    own_parents,
    lost_parents,
    other_questions,
)


@pytest.mark.parametrize("forged", FORGERIES)
@pytest.mark.parametrize("name", PARTS)
def test_a_forged_part(
    name: str, forged: Callable[[pa.Table], pa.Table], world: World, run: Path, tmp_path: Path
) -> None:
    table = forged(pq.read_table(run / name))
    pq.write_table(table, run / name)
    (part,) = (part for part in load_manifest(run).parts if part.path == name)
    digest = hashlib.sha256((run / name).read_bytes()).hexdigest()
    add_parts(run, [part.model_copy(update={"rows": table.num_rows, "sha256": digest})])
    for stage, more in READERS.items():
        ended = world.stages.run(stage, "--config", world.recipe, "--run", run, *more)
        assert ended.code in {0, 1, 2}, ended.said
        assert "Traceback" not in ended.said
        if forged in (as_numbers, as_lists, a_column_twice) and name.startswith("trees"):
            assert stage not in {"relabel", "diagnose"} or str(run / name) in ended.said
