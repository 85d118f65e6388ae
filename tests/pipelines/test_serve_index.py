"""`branchwise serve-index`: serves the index of a recipe to other machines."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_dataset

from branchwise.cli.command_line import parser, run_stage
from branchwise.retrieval.http_retriever import HttpRetriever
from branchwise.retrieval.index import open_retriever
from branchwise.runs.factories import open_data
from branchwise.runs.recipe_file import load_recipe

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))
    return tiny_dataset.recipe(tmp_path, "http://127.0.0.1:9/v1")


def test_a_served_index_returns_the_results_of_the_local_index(recipe: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "branchwise",
        "serve-index",
        "--config",
        str(recipe),
        "--json",
    ]
    serving = subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert serving.stderr is not None
    said = ""
    while not (found := re.search(r'kind: http, url: "(\S+)"', said)):
        line = serving.stderr.readline()
        assert line, said
        said += line
    loaded = load_recipe(recipe)
    local = open_retriever(loaded.retrieval, list(open_data(loaded).passages))
    remote = HttpRetriever(found[1])
    for query in ("capital of France", "yen", "nothing alike"):
        assert asyncio.run(remote.search(query, 3)) == asyncio.run(local.search(query, 3))
    taken = found[1].rpartition(":")[2].partition("/")[0]
    arguments = ["serve-index", "--config", str(recipe), "--port", taken]
    assert run_stage(parser().parse_args(arguments)) == 2
    serving.send_signal(signal.SIGTERM)
    out, _ = serving.communicate()
    assert serving.returncode == 0
    assert json.loads(out)["url"] == found[1]


def test_a_recipe_without_an_index_is_refused(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["serve-index", "--config", str(recipe), "--set", "retrieval.kind=http"]
    words += ["--set", "retrieval.url=http://127.0.0.1:9"]
    assert run_stage(parser().parse_args(words)) == 2
    assert "set it to bm25, dense or fusion" in capsys.readouterr().out
