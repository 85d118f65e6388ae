"""`inspect`: all formats print the whole result, and a terminal without SQL gets a prompt."""

import csv
import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from command_line import branchwise
from loopback import serving
from stages import CHECK_TIMEOUT_S
from tiny_dataset import policy, recipe

from branchwise.cli.command_line import main
from branchwise.storage.parts import read_parts
from branchwise.storage.schemas import table_to_records
from branchwise.types import Pair

BRANCHWISE = (sys.executable, "-m", "branchwise")

LONG = "a | long\n\x1b[31mred\x1b[0m 東京 " + "text " * 100


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Annotated run with a relabelling `half` that changes every reward."""
    folder = tmp_path_factory.mktemp("inspect")
    run = folder / "run"
    with pytest.MonkeyPatch.context() as patch, serving(policy) as endpoint:
        patch.setenv("BRANCHWISE_CACHE", str(folder / "cache"))
        patch.setenv("OPENAI_API_KEY", "test-key")
        config = recipe(folder, endpoint.base_url)
        assert branchwise("annotate", config, run) == 0
        half = ("--label", "half", "--set", "rewards.alpha=0.5")
        assert branchwise("relabel", config, run, *half) == 0
    return run


Output = Callable[..., str]


@pytest.fixture
def output(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Output:
    """Returns what `branchwise inspect` prints if its output is not a terminal."""

    def printed(*more: str, sql: str = "", code: int = 0) -> str:
        monkeypatch.setenv("SQL", sql)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["inspect", "--run", str(run), *more])
        said = capsys.readouterr().out
        assert (ended.value.code or 0) == code, said
        return said

    return printed


@pytest.mark.parametrize("form", ["table", "csv", "json", "md"])
def test_ctrl_c_ends_a_long_output(run: Path, form: str) -> None:
    """Checks that rows are printed while the query runs, as the result does not fit in memory."""
    limited = ("sh", "-c", 'ulimit -d 4000000; exec "$@"', "sh")  # in KiB
    child = subprocess.Popen(
        [*limited, *BRANCHWISE, "inspect", "--run", str(run), "--format", form],
        env=os.environ | {"SQL": "select * from range(1000000000000)"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    hung = threading.Timer(CHECK_TIMEOUT_S, child.kill)
    hung.start()
    assert child.stdout is not None
    while b"999" not in (line := child.stdout.readline()):
        assert line, "the output ended"
    child.send_signal(signal.SIGINT)
    printed, problems = child.communicate()
    hung.cancel()
    assert (child.returncode, problems) == (130, b"")
    assert printed.endswith(b"interrupted; rerun the same command to resume\n")


def test_a_reader_may_close_the_pipe(run: Path) -> None:
    child = subprocess.Popen(
        [*BRANCHWISE, "inspect", "--run", str(run), "--format", "csv"],
        env=os.environ | {"SQL": "select * from range(1000000000000)"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None and child.stderr is not None
    assert child.stdout.readline() == b"range\n"
    child.stdout.close()
    problems = child.stderr.read()
    assert (child.wait(CHECK_TIMEOUT_S), problems) == (0, b"")


INTERRUPTED = """
import os, signal
from branchwise.cli.command_line import main
from branchwise.storage import views

def interrupt(number: int) -> int:
    os.kill(os.getpid(), signal.SIGINT)
    return number

def connect(*given):
    connection = original(*given)
    connection.create_function("interrupt", interrupt)
    return connection

original, views.connect = views.connect, connect
main()
"""
"""Program: `branchwise` with an SQL function that sends SIGINT to the process."""


def test_ctrl_c_ends_a_query_without_output(run: Path) -> None:
    sql = "select count(*) from range(1000000000000) where range > (select interrupt(1))"
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "inspect", "--run", str(run)],
        env=os.environ | {"SQL": sql},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=CHECK_TIMEOUT_S,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (130, "")
    assert ended.stdout == "interrupted; rerun the same command to resume\n"


def test_a_long_result_has_one_header_in_data_formats(output: Output) -> None:
    rows = list(range(2500))
    sql = f"select * from range({len(rows)})"
    assert output("--format", "csv", sql=sql).split() == ["range", *map(str, rows)]
    shown = json.loads(output("--format", "json", sql=sql))
    assert [row["range"] for row in shown] == rows
    head, _, *cells = output("--format", "md", sql=sql).splitlines()
    assert [head, *cells] == [f"| {cell} |" for cell in ("range", *rows)]


QUOTED = "'" + LONG.replace("'", "''") + "'"
ROW = f"select {QUOTED} as question, chosen, reward_gap, null as nothing from pairs limit 1"


def test_csv_and_json_hold_the_stored_values(run: Path, output: Output) -> None:
    (pair,) = table_to_records(read_parts(run, "pairs").slice(0, 1), Pair)
    (row,) = csv.DictReader(io.StringIO(output("--format", "csv", sql=ROW)))
    assert row["question"] == LONG
    assert json.loads(row["chosen"]) == [asdict(message) for message in pair.chosen]
    assert (float(row["reward_gap"]), row["nothing"]) == (pytest.approx(pair.reward_gap), "")
    (parsed,) = json.loads(output("--format", "json", sql=ROW))
    assert parsed["question"] == LONG
    assert parsed["nothing"] is None
    assert parsed["chosen"] == json.loads(row["chosen"])


def test_json_keeps_columns_with_the_same_name(output: Output) -> None:
    (row,) = json.loads(output("--format", "json", sql="select 1 as a, 2 as a"))
    assert row == {"a": 1, "a_2": 2}


def test_cells_of_a_redirected_table_are_not_cut(output: Output) -> None:
    text = output(sql=f"select {', '.join(f'{QUOTED} as c{n}' for n in range(4))}")
    assert text.count("text " * 99) == 4
    assert "\x1b" not in text


def test_markdown_has_a_line_per_row(output: Output) -> None:
    head, rule, row = output("--format", "md", sql=ROW).splitlines()
    assert head == "| question | chosen | reward_gap | nothing |"
    assert rule == "| --- | --- | --- | --- |"
    assert row.startswith(r"| a \| long ")


def test_label_selects_trees_and_pairs_of_a_relabelling(run: Path, output: Output) -> None:
    sql = "select * from pairs"
    for table, more in (("pairs", ()), ("relabelled/half/pairs", ("--label", "half"))):
        shown = json.loads(output("--format", "json", *more, sql=sql))
        assert [row["pair_id"] for row in shown] == read_parts(run, table)["pair_id"].to_pylist()
    sql = "select * from trees"
    for table, more in (("trees", ()), ("relabelled/half/labels", ("--label", "half"))):
        shown = json.loads(output("--format", "json", *more, sql=sql))
        assert [row["reward"] for row in shown] == read_parts(run, table)["reward"].to_pylist()
    assert "--label loose: " in output("--label", "loose", sql=sql, code=2)


def test_csv_of_several_tables_is_refused(output: Output) -> None:
    assert "needs a query" in output("--format", "csv", code=2)


def test_a_terminal_without_sql_gets_a_prompt(run: Path) -> None:
    """Types Ctrl-C in a query, a query of two lines, a wrong one with a suggestion, and Ctrl-D."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [*BRANCHWISE, "inspect", "--run", str(run)],
        env=os.environ | {"SQL": "", "TERM": "xterm", "COLUMNS": "80"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    hung = threading.Timer(CHECK_TIMEOUT_S, child.kill)
    hung.start()
    for typed, answer in (
        (None, b"Ctrl-D quits"),
        (b"select * from range(1000000000000);\n", b"999"),
        (b"select 'forty' || \n'two' as n;\n", b"fortytwo"),
        (b"select x from pears;\n", b'Did you mean "pairs"'),
    ):
        if typed:
            os.write(ours, typed)
        shown = b""
        while answer not in shown:
            shown += os.read(ours, 4096)  # raises once the child has ended
        if answer == b"999":
            child.send_signal(signal.SIGINT)
        while not shown.rstrip().endswith(b"D>"):
            shown = shown[-80:] + os.read(ours, 4096)
    os.write(ours, b"\x04")
    assert child.wait() == 0
    hung.cancel()
    os.close(ours)


def test_a_misspelt_stage_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["anotate"])
    assert ended.value.code == 2
    assert "'anotate'; did you mean `annotate`?" in capsys.readouterr().err


def test_no_arguments_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    assert "grow trees" in capsys.readouterr().out
