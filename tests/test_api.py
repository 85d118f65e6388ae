"""The Python interface: equal to the command line, in a notebook and in threads."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import networkx
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from command_line import branchwise
from fake_endpoint import FakeEndpoint, failure
from loopback import serving
from tiny_dataset import QUESTIONS, policy, recipe, write_rows
from tiny_llama import write_tiny_folder

import branchwise as bw
from branchwise.pipelines.stages import STAGES
from branchwise.runs import existing_run, terminal
from branchwise.runs import stage as stage_module
from branchwise.storage import schema_of

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = (REPOSITORY / "docs" / "python.md").read_text()

pytestmark = pytest.mark.usefixtures("own_folder")


def in_main_thread(call: Callable[[], bw.StoredRun]) -> bw.StoredRun:
    return call()


def in_a_thread(call: Callable[[], bw.StoredRun]) -> bw.StoredRun:
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(call).result()


def in_an_event_loop(call: Callable[[], bw.StoredRun]) -> bw.StoredRun:
    async def cell() -> bw.StoredRun:
        return call()

    return asyncio.run(cell())


def comparable(table: pa.Table) -> pa.Table:
    return table.drop_columns(["run_id"]).sort_by("pair_id")


def asking(folder: Path) -> dict[str, Any]:
    """Returns an `evaluation:` block with questions that no tree was grown for."""
    rows = [
        {**row, "id": f"e{row['id']}", "question": f"Say: {row['question']}"} for row in QUESTIONS
    ]
    asked = write_rows(folder / "asked.jsonl", *rows)
    questions = {"source": "jsonl", "questions": asked, "split": None}
    return {"set": questions, "policies": {"one": "policy"}}


@pytest.mark.parametrize("call_in", [in_main_thread, in_a_thread, in_an_event_loop])
def test_annotate_gives_the_pairs_of_the_command(
    call_in: Callable[[Callable[[], bw.StoredRun]], bw.StoredRun],
    tmp_path: Path,
    endpoint: FakeEndpoint,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = recipe(tmp_path, endpoint.base_url)
    assert branchwise("annotate", file, tmp_path / "command") == 0
    printed = capsys.readouterr().out
    config = bw.load_recipe(file)
    run = call_in(lambda: bw.annotate(config, tmp_path / "python"))
    expected = bw.open_run(tmp_path / "command").pairs()
    assert expected.num_rows == run.totals["pairs"] > 0
    assert comparable(run.pairs()).equals(comparable(expected))
    first_line = printed.splitlines()[0]
    assert first_line in capsys.readouterr().out
    assert call_in(lambda: bw.annotate(config, tmp_path / "python", quiet=True)).totals
    assert capsys.readouterr().out == ""


def test_two_runs_are_annotated_at_once_and_one_run_is_not(
    tmp_path: Path, endpoint: FakeEndpoint
) -> None:
    config = bw.load_recipe(recipe(tmp_path, endpoint.base_url))
    with ThreadPoolExecutor(2) as executor:
        runs = list(executor.map(lambda name: bw.annotate(config, name), ("one", "two")))
    first, second = (comparable(run.pairs()) for run in runs)
    assert first.equals(second)
    with (
        existing_run(runs[0].folder).held(),
        pytest.raises(bw.ConfigError, match="in use by process"),
    ):
        bw.annotate(config, "one")


def test_a_limit_is_an_error_with_the_run_and_a_second_call_resumes(
    tmp_path: Path, endpoint: FakeEndpoint
) -> None:
    file = recipe(tmp_path, endpoint.base_url)
    whole = bw.annotate(bw.load_recipe(file), "whole")
    made = len(endpoint.requests)
    with pytest.raises(bw.BudgetExceeded, match="max_tokens 400 reached") as raised:
        bw.annotate(bw.load_recipe(file, {"limits.max_tokens": 400}), "parts")
    assert isinstance(raised.value, bw.LimitReached)
    assert raised.value.totals["calls"] == len(endpoint.requests) - made
    assert raised.value.run.pairs().num_rows < whole.pairs().num_rows
    with pytest.raises(bw.LimitReached, match="need calls that the ledger does not have"):
        bw.annotate(bw.load_recipe(file), "parts", replay=True)
    run = bw.annotate(bw.load_recipe(file), "parts")
    assert len(endpoint.requests) == 2 * made
    assert comparable(run.pairs()).equals(comparable(whole.pairs()))


def test_too_many_failures_are_an_error_with_the_run(tmp_path: Path, own_cache: None) -> None:
    def unlucky(request: dict[str, Any]) -> Any:
        is_currency = "currency" in request["messages"][-1]["content"]
        return failure(400, "too long") if is_currency else policy(request)

    with serving(unlucky) as endpoint:
        file = recipe(tmp_path, endpoint.base_url)
        with pytest.raises(bw.TooManyFailures, match=r"limits\.max_failed_share") as raised:
            bw.annotate(bw.load_recipe(file), "run")
        run = raised.value.run
        assert run.failures()["question_id"].to_pylist() == ["q3"]
        assert raised.value.totals["questions_done"] == 5
        bw.annotate(bw.load_recipe(file, {"limits.max_failed_share": 0.5}), "run")


def test_faults_are_raised_and_never_end_the_process(
    tmp_path: Path, endpoint: FakeEndpoint
) -> None:
    file = recipe(tmp_path, endpoint.base_url)
    config = bw.load_recipe(file)
    with pytest.raises(bw.ConfigError, match="did you mean `atlas`"):
        bw.load_recipe("atals")
    with pytest.raises(bw.ConfigError, match=r"override mcts\.iteratons: .* did you mean"):
        bw.load_recipe(file, {"mcts.iteratons": 12})
    with pytest.raises(bw.ConfigError, match="no run here"):
        bw.open_run("none")
    with pytest.raises(bw.ConfigError, match="limit: not a positive integer"):
        bw.annotate(config, "run", limit=0)
    run = bw.annotate(config, "run", limit=2)
    assert run.recipe.data.limit == 2
    with pytest.raises(bw.ConfigError, match="no such relabelling"):
        run.pairs("none")
    with pytest.raises(bw.ConfigError, match="no tree of question"):
        run.tree("q7")
    with pytest.raises(bw.ConfigError, match="SQL"):
        run.sql("select nothing from nowhere")
    with pytest.raises(bw.ConfigError, match="the query is empty"):
        run.sql("-- nothing")
    with pytest.raises(bw.ConfigError, match="Pass those of another recipe to load_recipe"):
        bw.relabel(run, {"rewards.alpha": 0.5}, recipe=config)
    (part,) = (run.folder / "pairs").iterdir()
    part.write_bytes(b"damaged")
    with pytest.raises(bw.BranchwiseError, match="part-00000"):
        run.pairs()
    endpoint.models_status = 401
    with pytest.raises(bw.BranchwiseError, match="401"):
        bw.annotate(config, "other")


def test_a_dry_run_returns_the_estimate_and_writes_nothing(
    tmp_path: Path, endpoint: FakeEndpoint
) -> None:
    config = bw.load_recipe(recipe(tmp_path, endpoint.base_url))
    plan = bw.annotate(config, "run", dry_run=True, quiet=True)
    assert plan.totals["expected_questions"] == [6, 6]
    assert not plan.folder.exists()
    with pytest.raises(bw.ConfigError, match="no run here"):
        plan.pairs()


def test_tables_and_trees_of_a_run(tmp_path: Path, endpoint: FakeEndpoint) -> None:
    run = bw.annotate(bw.load_recipe(recipe(tmp_path, endpoint.base_url)), "run")
    for table in ("pairs", "trees", "questions", "predictions", "failures"):
        assert getattr(run, table)().schema.equals(schema_of(table)), table
    assert run.predictions().num_rows == run.failures().num_rows == 0
    assert set(run.questions()["question_id"].to_pylist()) == {f"q{n}" for n in range(1, 7)}
    tree = run.tree("q1")
    assert networkx.is_arborescence(tree)
    rows = run.trees().filter(pc.equal(run.trees()["question_id"], "q1"))
    assert len(tree) == rows.num_rows
    counted = run.sql("select count(*) as n, count(*) as n from trees")
    assert counted.to_pydict() == {"n": [run.trees().num_rows], "n_2": [run.trees().num_rows]}
    relabelled = bw.relabel(run, {"rewards.estimator": "rollout", "rewards.alpha": 0.5}, label="b")
    assert relabelled.totals["pairs"] == run.pairs("b").num_rows > 0
    assert not comparable(run.pairs("b")).equals(comparable(run.pairs()))
    labels = {tree.nodes[node]["reward"] for node in tree}
    again = run.tree("q1", "b")
    assert {again.nodes[node]["reward"] for node in again} != labels
    assert run.sql("select count(*) as n from pairs", "b")["n"].to_pylist() == [
        run.pairs("b").num_rows
    ]


def test_evaluate_returns_the_printed_table_metrics_and_predictions(
    tmp_path: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    file = recipe(tmp_path, endpoint.base_url, evaluation=asking(tmp_path))
    run = bw.annotate(bw.load_recipe(file), "run", quiet=True)
    evaluation = bw.evaluate(run)
    assert evaluation.table.strip() in capsys.readouterr().out
    assert "one" in evaluation.table
    assert evaluation.metrics["one"]["n"] == 6
    assert evaluation.predictions().num_rows == 6
    other = bw.evaluate(run, {"agent.max_steps": 2}, quiet=True)
    assert other.predictions().num_rows == 6
    assert run.predictions().num_rows == 12
    alone = bw.evaluate("alone", recipe=bw.load_recipe(file), limit=3, quiet=True)
    assert alone.predictions().num_rows == 3
    plan = bw.evaluate(run, dry_run=True, quiet=True)
    assert (plan.table, plan.metrics) == ("", {})
    assert plan.totals["expected_calls"]


@pytest.mark.parametrize("notebook", [False, True])
def test_an_interrupt_stores_the_calls_in_flight(
    notebook: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping = threading.Event()
    print_line = terminal.Terminal.print_line

    def watched(console: terminal.Terminal, text: str) -> None:
        print_line(console, text)
        if text == stage_module.STOPPING:
            stopping.set()

    monkeypatch.setattr(terminal.Terminal, "print_line", watched)
    asked: list[int] = []

    async def reply(request: dict[str, Any]) -> str:
        asked.append(1)
        if len(asked) == 3:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.to_thread(stopping.wait)
        return policy(request)

    with serving(reply) as endpoint:
        config = bw.load_recipe(recipe(tmp_path, endpoint.base_url))

        async def cell() -> None:
            with pytest.raises(KeyboardInterrupt):
                bw.annotate(config, "run")

        if notebook:
            loop = asyncio.new_event_loop()  # `asyncio.run` would handle the signal
            loop.run_until_complete(cell())
            loop.close()
        else:
            with pytest.raises(KeyboardInterrupt):
                bw.annotate(config, "run")
        with existing_run(Path("run")).open_ledger() as ledger:
            assert ledger.totals().calls == len(asked)
        bw.annotate(config, "run")
        bw.annotate(config, "whole")
    pairs = [comparable(bw.open_run(name).pairs()) for name in ("run", "whole")]
    assert pairs[0].equals(pairs[1])


@pytest.mark.parametrize(
    ("function", "stage"),
    [
        (bw.annotate, "annotate"),
        (bw.relabel, "relabel"),
        (bw.warm_start, "warm-start"),
        (bw.train_sft, "train-sft"),
        (bw.train_dpo, "train-dpo"),
        (bw.train_grpo, "train-grpo"),
        (bw.train_rm, "train-rm"),
        (bw.evaluate, "eval"),
    ],
)
def test_functions_have_the_options_of_their_stage(
    function: Callable[..., Any], stage: str
) -> None:
    parameters = signature(function).parameters
    options = {name for name, p in parameters.items() if p.kind == Parameter.KEYWORD_ONLY}
    own = {option.name: option.default for option in STAGES[stage].options()}
    assert {name: parameters[name].default for name in own} == own
    of_context = {*STAGES[stage].options_of_context} - {"history"}
    trains = stage == "warm-start" or stage.startswith("train-")
    also = {"resume"} if trains else set()
    assert options - {"recipe"} == {*own, *of_context, *also, "quiet"}


def test_the_import_loads_no_heavy_package() -> None:
    heavy = ("torch", "transformers", "pyarrow", "pydantic", "duckdb", "networkx", "rich", "openai")
    program = f"""
import sys
import branchwise
assert "annotate" in dir(branchwise)
print(*(name for name in {heavy} if name in sys.modules))
branchwise.load_recipe
print(*(name for name in ("torch", "transformers") if name in sys.modules))
"""
    child = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert child.stdout.split() == []


def test_every_public_name_loads() -> None:
    names = {name for name in dir(bw) if not name.startswith("_")}
    assert {"annotate", "train_dpo", "ConfigError", "Recipe"} <= names
    assert all(getattr(bw, name) is not None for name in names)


def blocks_of_the_page(training: bool) -> str:
    """Returns the code of the page in order, with or without the block that trains."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 4
    return "\n".join(block for block in blocks if training or "train_dpo" not in block)


def test_the_page_runs_as_written(
    tmp_path: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe(tmp_path, endpoint.base_url)
    (tmp_path / "configs").mkdir()
    (tmp_path / "recipe.yaml").rename(tmp_path / "configs" / "mine.yaml")
    names: dict[str, Any] = {}
    exec(blocks_of_the_page(training=False), names)
    assert names["pairs"].num_rows == names["run"].pairs().num_rows > 0
    assert names["actions"].column_names == ["action", "n"]


@pytest.mark.model
@pytest.mark.parametrize("call_in", [in_main_thread, in_an_event_loop])
def test_the_page_trains_and_evaluates(
    call_in: Callable[[Callable[[], Any]], Any],
    tmp_path: Path,
    endpoint: FakeEndpoint,
    capfd: pytest.CaptureFixture[str],
) -> None:
    start = write_tiny_folder(tmp_path / "start")
    (tmp_path / "configs").mkdir()
    file = recipe(
        tmp_path,
        endpoint.base_url,
        policy={
            "engine": "openai",
            "model": "policy",
            "base_url": endpoint.base_url,
            "weights": str(start),
        },
        evaluation=asking(tmp_path),
        training={"precision": "float32", "dpo": {"epochs": 1}},
    )
    file.rename(tmp_path / "configs" / "mine.yaml")
    names: dict[str, Any] = {}
    call_in(lambda: exec(blocks_of_the_page(training=True), names))
    trained, run = names["policy"], names["run"]
    assert (trained.folder / "adapter" / "adapter_model.safetensors").exists()
    assert trained.folder == Path("models/mine/dpo")
    assert trained.metrics["examples"] == trained.metrics["pairs"] == run.pairs().num_rows
    assert names["evaluation"].metrics["one"]["n"] == 6
    assert bw.train_dpo(run, dry_run=True).metrics["optimiser_steps"]
    capfd.readouterr()
    other = bw.train_sft(run, {"training.sft.epochs": 1}, name="other", quiet=True)
    assert other.folder.name == "other"
    assert capfd.readouterr().out == "", "libraries may draw bars on standard error"
