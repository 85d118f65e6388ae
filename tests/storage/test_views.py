"""DuckDB sees only the committed parts, with typed columns even if there are none."""

import shutil
from pathlib import Path

import duckdb
import pytest
from sample_records import a_node, a_pair, a_question
from stored_rows import run_sql

from branchwise.base.errors import ConfigError, StorageError
from branchwise.base.memory import out_of_memory_message
from branchwise.storage.manifest import add_parts
from branchwise.storage.parts import write_part
from branchwise.storage.schemas import PAIRS, QUESTIONS, TREES, rows_to_table
from branchwise.storage.views import PART_ROWS, canned_queries, connect, query


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Run with two questions, two parts of trees and one pair, in a folder with an awkward name."""
    run = tmp_path / "it's a [run]* k=v"
    questions = [a_question(), a_question(id="q2", source="hotpotqa", extra={"k": 1})]
    nodes = [a_node(output_tokens=8), a_node(node_id=2, action="answer", output_tokens=4)]
    older = rows_to_table([a_node(question_id="q2", tree_id="t2")], TREES, "r")
    add_parts(
        run,
        [
            write_part(run, "questions", rows_to_table(questions, QUESTIONS, "r")),
            write_part(run, "trees", rows_to_table(nodes, TREES, "r"), 0),
            write_part(run, "trees", older.drop_columns(["verdict", "rollouts"]), 1),
            write_part(run, "pairs", rows_to_table([a_pair()], PAIRS, "r"), 0),
            write_part(run, "trained/grpo/questions", rows_to_table(questions, QUESTIONS, "r")),
            write_part(run, "relabelled/strict/pairs", rows_to_table([a_pair()], PAIRS, "r"), 0),
        ],
    )
    write_part(run, "pairs", rows_to_table([a_pair(pair_id="stray")], PAIRS, "r"), 1)
    return run


def test_views_show_only_committed_parts(run: Path) -> None:
    assert run_sql(run, "SELECT pair_id, chosen_components[1].value FROM pairs").rows == (
        ("p1", 0.75),
    )
    assert run_sql(run, "SELECT count(*) FROM trees").rows == ((3,),)
    columns = run_sql(run, "SELECT * FROM trees").columns
    assert columns == tuple(TREES.names)  # no column from the folder's name
    assert run_sql(run, "SELECT extra->>'k' FROM questions ORDER BY 1").rows == (("1",), (None,))


def test_a_run_without_parts_has_typed_empty_views(tmp_path: Path) -> None:
    result = run_sql(tmp_path, "SELECT depth + 1, len(prompt), detail FROM pairs, failures")
    assert result.rows == ()
    typed = run_sql(tmp_path, "SELECT column_type FROM (DESCRIBE pairs) WHERE column_name='depth'")
    assert typed.rows == (("SMALLINT",),)
    for _, sql in canned_queries():
        run_sql(tmp_path, sql)


def test_canned_queries_describe_the_run(run: Path) -> None:
    queries = canned_queries()
    assert "table 1" in queries[0][0]
    overview = {row[0]: row[1:] for row in run_sql(run, queries[0][1]).rows}
    assert overview["Questions"] == (2, None)
    assert overview["- hotpotqa"] == (1, 50)
    assert overview["Questions with a pair"] == (1, 50)
    assert overview["Actions (preference pairs, by chosen action)"] == (1, None)
    assert overview["- query"] == (1, 100)
    assert [overview[f"{word} tokens"][0] for word in ("Avg.", "Min.", "Med.", "Max.")] == [
        6,
        4,
        6,
        8,
    ]
    assert overview["Med. iteration"] == (1, None)
    for title, sql in queries:
        assert title
        assert run_sql(run, sql).columns


def test_errors_name_the_problem_and_the_fix(run: Path) -> None:
    with pytest.raises(ConfigError, match="nodez"):
        run_sql(run, "SELECT * FROM nodez")
    for nothing in ("-- nothing", ";"):
        with pytest.raises(ConfigError, match=r"the query is empty.* views pairs, trees"):
            run_sql(run, nothing)
    # The run's name, read as a pattern, would find this other run's part instead.
    shutil.copytree(run, run.with_name("it's a r k=v"))
    (run / "trees" / "part-00001.parquet").unlink()
    with pytest.raises(StorageError, match=r"part-00001\.parquet: missing\. .*branchwise verify"):
        run_sql(run, "SELECT 1")


def test_damaged_data_is_not_reported_as_a_fault_of_the_query(run: Path) -> None:
    part = run / "trees" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:4] + b"\xff" * 600 + part.read_bytes()[604:])
    with pytest.raises(StorageError, match=r"part-00000\.parquet: its content changed"):
        run_sql(run, "SELECT * FROM trees")


def test_a_result_is_read_in_parts(run: Path) -> None:
    with connect(run) as connection:
        # No memory could hold all of its rows.
        parts = query(connection, run, "SELECT * FROM range(1000000000000)")
        for number in range(3):
            assert next(parts).rows == tuple((number * PART_ROWS + n,) for n in range(PART_ROWS))
        (whole,) = query(connection, run, "SELECT 1 AS one")
        assert (whole.columns, whole.rows) == (("one",), ((1,),))
    rows = PART_ROWS + 1
    assert run_sql(run, f"SELECT * FROM range({rows})").rows == tuple((n,) for n in range(rows))


def test_a_query_that_needs_too_much_memory_is_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = "SELECT current_setting('memory_limit')"
    assert run_sql(run, setting).rows != tuple(duckdb.connect().execute(setting).fetchall())
    monkeypatch.setattr("branchwise.storage.views.MEMORY_LIMIT", "20MB")
    with pytest.raises(ConfigError, match="more than 20MB of this machine's memory") as refused:
        run_sql(run, "SELECT list(range) FROM range(10000000)")
    assert out_of_memory_message(refused.value) is None


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO '{run}/config.yaml'",
        "COPY pairs TO '{part}' (USE_TMP_FILE false)",
        "COPY pairs TO '.tmp/pairs.csv'",
        "SELECT 1; COPY (SELECT 1) TO '{run}/manifest.json'",
        "ATTACH '{run}/new.db'",
        "EXPORT DATABASE '{run}/out'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET temp_directory = '{run}'",
        "CREATE PERSISTENT SECRET s (TYPE s3)",
        "SELECT * FROM read_text('{run}/config.yaml')",
        "FROM '{part}'",
        "FROM 'http://127.0.0.1:9/pairs.parquet'",
    ],
)
def test_a_query_reaches_no_file_and_no_network(
    run: Path, sql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run)
    monkeypatch.setenv("HOME", str(run))
    (run / "config.yaml").write_text("seed: 7\n")
    before = _contents(run)
    quoted = str(run).replace("'", "''")
    with pytest.raises(ConfigError, match="redirect the output"):
        run_sql(run, sql.format(run=quoted, part=f"{quoted}/pairs/part-00000.parquet"))
    assert _contents(run) == before


def _contents(folder: Path) -> dict[Path, bytes | None]:
    return {p: p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}
