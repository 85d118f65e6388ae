"""`branchwise show`: trees, steps and pairs in a terminal."""

from pathlib import Path

import networkx
import pytest
from report_run import HOSTILE, a_run_with_report
from stored_rows import run_sql

from branchwise.base.errors import ConfigError
from branchwise.cli.command_line import parser, run_stage
from branchwise.storage.views import connect, rows_of, tree_graph


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_run_with_report(tmp_path_factory.mktemp("show"))


def shown(capsys: pytest.CaptureFixture[str], run: Path, *what: str) -> str:
    assert run_stage(parser().parse_args(["show", "--run", str(run), *what])) == 0
    return capsys.readouterr().out


def test_a_tree_has_a_line_per_step(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for (question,) in run_sql(run, "select distinct question_id from pairs").rows:
        tree = shown(capsys, run, question)
        (counts,) = run_sql(
            run,
            f"""select
            (select count(*) from trees where depth > 0 and question_id = '{question}'),
            (select count(distinct chosen_node) from pairs where question_id = '{question}'),
            (select count(distinct rejected_node) from pairs where question_id = '{question}')
            """,
        ).rows
        lines = [line.lstrip("│ ") for line in tree.splitlines()]
        steps = sum(line.startswith(("├─", "└─")) for line in lines)
        assert (steps, tree.count("✓ chosen"), tree.count("✗ rejected")) == counts


def test_tree_graph_returns_the_stored_tree(run: Path) -> None:
    ((question,),) = run_sql(run, "select question_id from pairs limit 1").rows
    graph = tree_graph(run, question)
    assert networkx.is_arborescence(graph)
    rewards = {child: graph.nodes[child]["reward"] for child in graph.successors(0)}
    stored = "select node_id, reward from trees where question_id = ? and parent_id = 0"
    with connect(run) as connection:
        rows = rows_of(connection, stored, question)
    assert rewards == {row["node_id"]: row["reward"] for row in rows} and rewards
    with pytest.raises(ConfigError, match="no tree of question 'nobody'"):
        tree_graph(run, "nobody")


def test_a_pair_shows_both_sides(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ((pair, chosen),) = run_sql(run, "select pair_id, chosen[1].content from pairs limit 1").rows
    told = shown(capsys, run, pair[:10])
    assert chosen.split(" ")[0] in told
    assert "✓ chosen" in told
    assert "✗ rejected" in told


def test_a_step_shows_its_passages(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql = (
        "select question_id, node_id, passages[1].title from trees where len(passages) > 0 limit 1"
    )
    ((question, node, title),) = run_sql(run, sql).rows
    told = shown(capsys, run, f"{question}:{node}")
    assert f"step {node}:" in told
    assert title in told
    assert "I should look closer." in told, "the reasoning before the step is missing"
    assert "is a city" in told or "has the capital" in told, "the text of the passage is missing"


def test_a_word_finds_a_question_and_several_matches_are_listed(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Gold answer: Yen" in shown(capsys, run, "currency")
    assert "q2" in shown(capsys, run, "osaka")
    assert run_stage(parser().parse_args(["show", "--run", str(run), "1965"])) == 2
    assert "found no question" in capsys.readouterr().out
    assert HOSTILE in shown(capsys, run)


@pytest.mark.parametrize(
    ("what", "error"), [("nothing", "found no question, step or pair"), ("q2:999", "no step")]
)
def test_an_unknown_question_or_step_is_an_error(
    run: Path, capsys: pytest.CaptureFixture[str], what: str, error: str
) -> None:
    assert run_stage(parser().parse_args(["show", "--run", str(run), what])) == 2
    assert error in capsys.readouterr().out
