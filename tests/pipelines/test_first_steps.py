"""What a newcomer meets after the first run: tables in other tools, limits, names, small files."""

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from command_line import branchwise, evaluated
from loopback import serving
from tiny_dataset import QUESTIONS, policy, recipe, write_rows

from branchwise.storage.ledger import Ledger
from branchwise.storage.manifest import load_manifest


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An annotated and evaluated run, in which no question failed."""
    folder = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch, serving(policy) as endpoint:
        patch.setenv("OPENAI_API_KEY", "test-key")
        patch.setenv("BRANCHWISE_CACHE", str(folder / "cache"))
        questions = [{**row, "id": f"e{n}"} for n, row in enumerate(QUESTIONS)]
        for row in questions:
            row["question"] = f"Tell me: {row['question']}"
        asked = write_rows(folder / "asked.jsonl", *questions)
        evaluation = {
            "set": {"source": "jsonl", "questions": asked, "split": None},
            "policies": {"one": "policy", "other": "policy"},
        }
        config = recipe(folder, endpoint.base_url, evaluation=evaluation)
        assert branchwise("annotate", config, folder / "run") == 0
        assert evaluated(config, folder / "run") == 0
    return folder / "run"


def test_every_table_of_a_run_loads_in_datasets_pandas_and_duckdb(
    run: Path, tmp_path: Path
) -> None:
    datasets = pytest.importorskip("datasets")
    pandas = pytest.importorskip("pandas")
    files = sorted(run.rglob("*.parquet"))
    assert len(files) == len(load_manifest(run).parts) >= 4
    for file in files:
        rows = len(pandas.read_parquet(file))
        assert rows > 0, file
        ((counted,),) = duckdb.execute(
            "SELECT count(*) FROM read_parquet(?)", [str(file)]
        ).fetchall()
        table = datasets.load_dataset(
            "parquet", data_files=str(file), split="train", cache_dir=str(tmp_path)
        )
        assert rows == counted == len(table)


def test_the_run_folder_loads_as_a_dataset_by_its_card(run: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    assert datasets.get_dataset_config_names(str(run)) == ["pairs", "trees", "questions"]
    manifest = load_manifest(run)
    for name in ("pairs", "trees", "questions"):
        table = datasets.load_dataset(str(run), name, split="train", cache_dir=str(tmp_path))
        assert len(table) == sum(part.rows for part in manifest.of(name))
    usual = datasets.load_dataset(str(run), split="train", cache_dir=str(tmp_path))
    assert "chosen" in usual.column_names


def test_the_pairs_of_a_run_go_into_trls_dpo_trainer_as_they_are(run: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    trl = pytest.importorskip("trl")
    from tiny_llama import write_tiny_folder

    from branchwise.weights.policies import load_policy, policy_files

    model, tokenizer = load_policy(policy_files(str(write_tiny_folder(tmp_path / "tiny"))))
    table = datasets.load_dataset(str(run), "pairs", split="train", cache_dir=str(tmp_path))
    pairs = table.select(range(2))
    arguments = trl.DPOConfig(
        output_dir=str(tmp_path / "out"), max_steps=1, use_cpu=True, report_to="none", bf16=False
    )
    trainer = trl.DPOTrainer(model, args=arguments, train_dataset=pairs, processing_class=tokenizer)
    assert trainer.train().global_step == 1


def test_policies_that_take_the_same_steps_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test-key")
    with serving(lambda body: "<answer>Paris</answer>") as endpoint:
        asked = write_rows(tmp_path / "asked.jsonl", *QUESTIONS)
        evaluation = {
            "set": {"source": "jsonl", "questions": asked, "split": None},
            "policies": {"one": "policy", "other": {"model": "policy", "agent": {"max_steps": 4}}},
        }
        config = recipe(tmp_path, endpoint.base_url, evaluation=evaluation)
        assert evaluated(config, tmp_path / "run") == 0
    assert "one and other take the same steps in every question" in capsys.readouterr().out


PRICE = {"input": 1000.0, "output": 1000.0}


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_a_money_limit_leaves_finished_questions(share: float, tmp_path: Path) -> None:
    """At any limit, about as many questions are finished as it pays for; few are left begun."""
    with serving(policy) as endpoint:
        served = {"engine": "openai", "model": "policy", "base_url": endpoint.base_url}
        config = recipe(tmp_path, "", policy={**served, "price_per_million": PRICE})
        questions = [
            {**row, "id": f"{row['id']}-{n}", "question": f"{row['question']} ({n})"}
            for n in range(5)
            for row in QUESTIONS
        ]
        write_rows(tmp_path / "questions.jsonl", *questions)
        assert branchwise("annotate", config, tmp_path / "whole") == 0
        whole = spent(tmp_path / "whole")
        limit = ("--set", f"limits.max_usd={share * whole}")
        assert branchwise("annotate", config, tmp_path / "run", *limit) == 3
    finished = sum(part.rows for part in load_manifest(tmp_path / "run").of("questions"))
    assert finished == len(questions)
    done = done_questions(tmp_path / "run")
    assert done >= 0.7 * share * len(questions)


def spent(run: Path) -> float:
    with Ledger(run / "ledger.sqlite") as ledger:
        return ledger.totals().cost_usd


def done_questions(run: Path) -> int:
    files = [str(run / part.path) for part in load_manifest(run).of("trees")]
    query = "SELECT count(DISTINCT question_id) FROM read_parquet(?)"
    (row,) = duckdb.execute(query, [files]).fetchall()
    return int(row[0])


def test_a_relabelling_with_other_settings_is_not_replaced(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = run / "config.yaml"
    named = ("--label", "mine")
    assert branchwise("relabel", config, run, *named, "--set", "rewards.alpha=0.5") == 0
    assert branchwise("relabel", config, run, *named, "--set", "rewards.alpha=0.5") == 0
    assert branchwise("relabel", config, run, *named, "--set", "rewards.alpha=0.6") == 2
    assert "`mine` has other settings" in capsys.readouterr().out


@pytest.mark.parametrize("stage", ["report", "train-dpo", "eval", "inspect", "verify"])
def test_a_misspelt_run_is_named(
    stage: str, run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from branchwise.cli.command_line import parser, run_stage

    wrong = run.parent / "rum"
    assert run_stage(parser().parse_args([stage, "--run", str(wrong)])) == 2
    said = capsys.readouterr().out
    assert f"--run {wrong}: no such folder; did you mean `{run}`?" in said
    assert not wrong.exists()


def test_json_output_is_json_whatever_the_values(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = "SELECT 'nan'::DOUBLE AS a, 'inf'::FLOAT AS b, MAP {1: 'x'} AS c, DATE '2020-01-01' AS d"
    monkeypatch.setenv("SQL", sql)
    assert branchwise("inspect", run / "config.yaml", run, "--format", "json") == 0

    def refused(name: str) -> Any:
        raise AssertionError(name)

    (row,) = json.loads(capsys.readouterr().out, parse_constant=refused)
    assert row["a"] is None and row["b"] is None
    assert row["d"] == "2020-01-01"


def test_data_says_how_to_use_a_small_file_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = recipe(tmp_path, "http://127.0.0.1:9/v1")
    assert branchwise("data", config, tmp_path / "run", "--set", "data.split=train") in (0, 2)
    assert branchwise("data", config, tmp_path / "run", "--set", "data.split=test") in (0, 2)
    said = capsys.readouterr().out
    assert "set data.split: null" in said
    assert "questions of the split" in said
    assert branchwise("data", config, tmp_path / "run") == 0
    assert "few for splits" not in capsys.readouterr().out


def test_data_counts_answers_that_squads_match_takes_for_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = recipe(tmp_path, "http://127.0.0.1:9/v1")
    rows = [{**QUESTIONS[0], "answers": ["3.14", "C#", "Paris"]}, *QUESTIONS[1:]]
    write_rows(tmp_path / "questions.jsonl", *rows)
    assert branchwise("data", config, tmp_path / "run") == 0
    said = capsys.readouterr().out
    assert "warning: 2 gold answers that SQuAD's exact match takes for others" in said
    assert 'such as "3.14" and "314"' in said
    assert "rewards.comparison: strict" in said


def test_rewards_of_own_data_tell_314_from_3_14(tmp_path: Path) -> None:
    def always(body: dict[str, Any]) -> str:
        return "<answer>314</answer>"

    with serving(always) as endpoint:
        config = recipe(tmp_path, endpoint.base_url)
        write_rows(tmp_path / "questions.jsonl", {**QUESTIONS[0], "answers": ["3.14"]})
        assert branchwise("annotate", config, tmp_path / "strict") == 0
        squad = ("--set", "rewards.comparison=squad")
        assert branchwise("annotate", config, tmp_path / "squad", *squad) == 0
    rewards = {}
    for name in ("strict", "squad"):
        part = load_manifest(tmp_path / name).of("trees")[0]
        query = "SELECT max(reward) FROM read_parquet(?)"
        (row,) = duckdb.execute(query, [str(tmp_path / name / part.path)]).fetchall()
        rewards[name] = row[0]
    assert rewards["strict"] == 0
    assert rewards["squad"] > 0


async def test_a_search_server_answers_others_during_a_long_search() -> None:
    import asyncio
    import threading

    import aiohttp

    from branchwise.retrieval.index_server import serving as serving_index

    begun, released = threading.Event(), threading.Event()

    class Slow:
        digest = "slow"

        async def search(self, query: str, top_k: int) -> list[Any]:
            begun.set()
            released.wait(60)
            return []

    async with serving_index(Slow()) as url, aiohttp.ClientSession() as client:
        body = {"queries": ["a"] * 3, "topk": 1}
        search = asyncio.create_task(client.post(url, json=body))
        await asyncio.to_thread(begun.wait, 60)
        async with client.get(url.replace("/retrieve", "/health")) as health:
            assert await health.json() == {"digest": "slow"}
        assert not search.done()
        released.set()
        async with await search as reply:
            assert await reply.json() == {"result": [[], [], []]}
