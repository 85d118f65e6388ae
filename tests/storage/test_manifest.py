"""Parts and manifest: only committed parts are read, and damage is detected."""

from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sample_records import a_node, a_pair

from branchwise.base.errors import StorageError
from branchwise.storage.manifest import (
    Manifest,
    PartInfo,
    add_parts,
    load_manifest,
    verify_manifest,
)
from branchwise.storage.parts import question_ids, read_parts, write_part
from branchwise.storage.schemas import PAIRS, TREES, rows_to_table, table_to_records
from branchwise.types import Pair, TreeNode


def _trees(*nodes: TreeNode) -> pa.Table:
    return rows_to_table(nodes, TREES, "run")


def test_readers_see_committed_parts_only(tmp_path: Path) -> None:
    first = write_part(tmp_path, "trees", _trees(a_node(question_id="a")), 0)
    assert read_parts(tmp_path, "trees").num_rows == 0  # written, not committed
    assert read_parts(tmp_path, "trees").schema.equals(TREES)
    add_parts(tmp_path, [first])
    write_part(tmp_path, "trees", _trees(a_node(question_id="stray")), 1)
    (tmp_path / "trees" / "part-00002.parquet").write_bytes(b"torn")
    (tmp_path / "trees" / ".part-3.parquet").write_bytes(b"torn")
    assert question_ids(tmp_path, "trees") == {"a"}
    assert verify_manifest(tmp_path) == []


def test_commits_accumulate_and_a_part_of_the_same_path_is_replaced(tmp_path: Path) -> None:
    nodes = [a_node(question_id=q, node_id=i) for i, q in enumerate("aab")]
    trees = write_part(tmp_path, "trees", _trees(*nodes), 0)
    pairs = write_part(tmp_path, "pairs", rows_to_table([a_pair()], PAIRS, "run"), 0)
    manifest = add_parts(tmp_path, [trees, pairs])
    assert (trees.path, trees.rows) == ("trees/part-00000.parquet", 3)
    assert manifest == load_manifest(tmp_path)
    assert [part.table for part in manifest.parts] == ["pairs", "trees"]
    failures = write_part(tmp_path, "eval/p/s/predictions", _trees(), None)
    assert failures.path == "eval/p/s/predictions.parquet"
    again = write_part(tmp_path, "trees", _trees(nodes[0]), 0)
    assert add_parts(tmp_path, [again]).rows("trees") == 1
    assert table_to_records(read_parts(tmp_path, "trees"), TreeNode) == nodes[:1]
    assert table_to_records(read_parts(tmp_path, "pairs"), Pair) == [a_pair()]


def test_a_kill_while_a_table_is_replaced_leaves_no_damaged_part(tmp_path: Path) -> None:
    older = [
        write_part(tmp_path, "trees", _trees(a_node(question_id=q)), n) for n, q in enumerate("ab")
    ]
    pairs = write_part(tmp_path, "pairs", rows_to_table([a_pair()], PAIRS, "run"), 0)
    add_parts(tmp_path, [*older, pairs])
    write_part(tmp_path, "trees", _trees(a_node(question_id="a")), 0)
    assert question_ids(tmp_path, "trees") == {"a", "b"}, "the same content replaces nothing"
    write_part(tmp_path, "trees", _trees(a_node(question_id="c")), 0)  # and then a kill
    assert verify_manifest(tmp_path) == []
    assert question_ids(tmp_path, "trees") == set(), "no mixture of the old and the new table"
    assert read_parts(tmp_path, "pairs").num_rows == 1


def test_damaged_parts_are_detected_and_named(tmp_path: Path) -> None:
    parts = [write_part(tmp_path, "trees", _trees(a_node()), i) for i in range(4)]
    miscounted = parts[3].model_copy(update={"rows": 2})
    add_parts(tmp_path, [*parts[:3], miscounted])
    flipped = bytearray((tmp_path / parts[1].path).read_bytes())
    flipped[len(flipped) // 2] ^= 1
    (tmp_path / parts[1].path).write_bytes(flipped)
    (tmp_path / parts[2].path).unlink()
    problems = verify_manifest(tmp_path)
    assert [p.partition(": ")[0] for p in problems] == [
        str(tmp_path / part.path) for part in (parts[1], parts[2], parts[3])
    ]
    for problem, words in zip(
        problems, ("content changed", "missing", "1 rows, but 2"), strict=True
    ):
        assert words in problem
    with pytest.raises(StorageError, match=r"part-0000[12]\.parquet"):
        read_parts(tmp_path, "trees")


def test_any_changed_bit_of_the_manifest_is_detected(tmp_path: Path) -> None:
    parts = [write_part(tmp_path, "trees", _trees(a_node()), i) for i in range(2)]
    add_parts(tmp_path, parts, "of a run")
    written = (tmp_path / "manifest.json").read_bytes()
    for place in range(len(written)):
        changed = bytearray(written)
        changed[place] ^= 1
        if changed.split() == written.split():
            continue  # white space
        (tmp_path / "manifest.json").write_bytes(changed)
        with pytest.raises(StorageError, match=r"manifest\.json"):
            load_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text(Manifest(parts=tuple(parts)).model_dump_json())
    with pytest.raises(StorageError, match="its content changed"):
        load_manifest(tmp_path)


def test_a_bad_manifest_is_refused(tmp_path: Path) -> None:
    assert load_manifest(tmp_path) == Manifest()
    with pytest.raises(StorageError, match="no such run folder"):
        load_manifest(tmp_path / "none")
    outside = PartInfo.model_construct(table="pairs", path="../x.parquet", rows=1, sha256="0")
    for text in ("{", "[]", Manifest.model_construct(parts=(outside,)).model_dump_json()):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(StorageError, match=r"manifest\.json.*remove it") as caught:
            load_manifest(tmp_path)
        assert "pydantic" not in str(caught.value)
    (tmp_path / "manifest.json").write_text('{"schema_version": 99, "parts": []}')
    with pytest.raises(StorageError, match="newer version"):
        read_parts(tmp_path, "pairs")


def test_hugging_face_datasets_reads_a_pairs_part(tmp_path: Path) -> None:
    from datasets import Dataset

    # The second row's nullable columns are all null, so their types come from the schema.
    rows = [a_pair(), a_pair(pair_id="p2", chosen_components=(), judge_model=None)]
    part = write_part(tmp_path, "pairs", rows_to_table(rows, PAIRS, "run"), 0)
    dataset = Dataset.from_parquet(str(tmp_path / part.path), cache_dir=str(tmp_path / "cache"))
    assert dataset.column_names == PAIRS.names
    # TRL's conversational preference format, unconverted.
    assert dataset[0]["prompt"] == [asdict(message) for message in rows[0].prompt]
    assert dataset[0]["chosen"] == [{"role": "assistant", "content": "<query>France</query>"}]
    assert dataset[0]["chosen_components"] == [
        {"name": "f1", "value": 0.75},
        {"name": "em", "value": None},
    ]
    assert pq.read_metadata(tmp_path / part.path).row_group(0).column(0).compression == "ZSTD"
