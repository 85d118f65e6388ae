"""`doctor` prints all problems that would stop a recipe, at once."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import branchwise
from fake_endpoint import failure
from loopback import serving
from tiny_dataset import policy, recipe
from tiny_models import write_tiny_model


def test_all_problems_of_a_recipe_are_printed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test-key")

    with serving(policy) as endpoint:
        config = recipe(tmp_path, endpoint.base_url)
        assert branchwise("doctor", config, tmp_path / "run") == 0
        assert not (tmp_path / "run").exists()
        said = capsys.readouterr().out
        assert "the recipe can run here" in said
        assert "note: train-dpo will need policy.weights" in said
        dead = {"kind": "http", "url": "http://127.0.0.1:9/retrieve"}
        judge = {"engine": "openai", "model": "none", "base_url": endpoint.base_url}
        config = recipe(
            tmp_path,
            endpoint.base_url,
            retrieval=dead,
            judge=judge,
            mcts={"evaluator": "judge"},
            evaluation={"policies": {"base": "policy", "dpo": "models/{run}/dpo"}},
        )
        exam = {"source": "jsonl", "questions": "exam.jsonl", "split": None}
        more = ("--set", f"evaluation.set={json.dumps(exam)}")
        assert branchwise("doctor", config, tmp_path / "run", *more) == 2
        assert "evaluation.set.questions: exam.jsonl does not exist" in capsys.readouterr().out
        (tmp_path / "questions.jsonl").unlink()
        (tmp_path / "corpus.jsonl").unlink()
        assert branchwise("doctor", config, config) == 2
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("problem:")]
    blocks = [line.split(": ")[1] for line in told]
    assert sorted(blocks) == [
        "data",
        "data",
        "evaluation.policies.dpo",
        "judge",
        "retrieval",
        "run",
    ]
    for named in ("questions.jsonl", "corpus.jsonl", "127.0.0.1:9", str(config), "'none'"):
        assert any(named in line for line in told)


def test_a_policy_to_evaluate_is_tested_at_its_own_temperature(tmp_path: Path) -> None:
    with serving(policy, models=("policy", "warm")) as endpoint:
        other = {"model": "warm", "temperature": 1.0}
        config = recipe(
            tmp_path, endpoint.base_url, evaluation={"policies": {"warm": other}, "temperature": 0}
        )
        assert branchwise("doctor", config, tmp_path / "run") == 0
    drawn = {request["model"]: request["temperature"] for request in endpoint.requests}
    assert drawn["warm"] == 1.0


@pytest.mark.parametrize("status", [401, 404, 400])
def test_an_endpoint_that_lists_the_model_but_fails_to_run_it_is_a_problem(
    status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(lambda _: failure(status)) as endpoint:
        config = recipe(tmp_path, endpoint.base_url)
        assert branchwise("doctor", config, tmp_path / "run") == 2
    assert f"problem: policy: {endpoint.base_url} " in (said := capsys.readouterr().out)
    assert f"answered {status}" in said
    assert endpoint.requests[0]["max_tokens"] == 96, "the limit of the run"
    assert len(endpoint.requests) <= 21


def test_the_endpoint_is_tested_with_token_ids_if_the_protocol_needs_them(tmp_path: Path) -> None:
    with serving(policy) as endpoint:
        mine = {"protocol": "search-r1"}
        config = recipe(tmp_path, endpoint.base_url, agent=mine, mcts={"kind": "chains"})
        endpoint.script = lambda _: failure(404)
        assert branchwise("doctor", config, tmp_path / "run") == 2
        assert len(endpoint.requests) == 1, "one problem is not found twice"
        endpoint.script = lambda _: "x"
        assert branchwise("doctor", config, tmp_path / "run") == 0
    assert all("prompt" in request for request in endpoint.requests)
    drawn = [request["temperature"] for request in endpoint.requests[1:]]
    assert drawn == [0.8, 0.0], "the first call of annotate, and that of eval"


def test_a_proxy_that_would_see_prompts_and_keys_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("http_proxy", "http://me:hunter2@127.0.0.1:9")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))

    def told(stage: str, **blocks: object) -> list[str]:
        config = recipe(tmp_path, "http://model.example/v1", **blocks)
        more = ["--dry-run"] if stage != "doctor" else []
        branchwise(stage, config, tmp_path / "run", *more)
        said = capsys.readouterr().out
        assert "hunter2" not in said
        return [line for line in said.splitlines() if line.startswith("note:") and "proxy" in line]

    search = {"kind": "http", "url": "http://search.example"}
    both = told("doctor", retrieval=search)
    assert [line.split(":")[1] for line in both] == [" retrieval.url", " policy.base_url"]
    assert all("proxy http://127.0.0.1:9" in line for line in both)
    assert "the key" in both[1]
    assert len(told("annotate")) == len(told("eval")) == 1
    secure = {"engine": "openai", "model": "policy", "base_url": "https://model.example/v1"}
    assert told("annotate", policy=secure) == []
    monkeypatch.setenv("no_proxy", "model.example")
    assert told("annotate") == []


def test_a_policy_that_no_stage_trains_is_a_problem_if_it_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policies = {"base": "packaged", "mine": "models/{run}/dpo", "old": "models/gone"}
    config = recipe(
        tmp_path,
        "",
        policy={"engine": "openvino", "model": "packaged"},
        evaluation={"policies": policies, "baselines": ["oracle"], "baseline_model": "models/none"},
    )
    assert branchwise("doctor", config, tmp_path / "run") == 2
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("problem:")]
    assert [line.split(": ")[1] for line in told] == [
        "evaluation.policies.old",
        "evaluation.baseline_model",
    ]


def test_models_that_the_embedded_engine_cannot_run_are_problems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def problems(**config: Any) -> list[str]:
        write_tiny_model(tmp_path / "model", "qwen2")
        path = tmp_path / "model" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config))
        policy = {"engine": "openvino", "model": str(tmp_path / "model")}
        training = {"warm_start": {"base": policy["model"]}}
        config_file = recipe(tmp_path, "", policy=policy, training=training)
        branchwise("doctor", config_file, tmp_path / "run")
        said = capsys.readouterr().out.splitlines()
        return [line for line in said if line.startswith("problem:")]

    assert problems() == []
    refused: dict[str, dict[str, Any]] = {
        "its architecture is gemma2": {"model_type": "gemma2"},
        "its architecture is qwen2_moe": {"model_type": "qwen2_moe"},
        "scaled rotary": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
        "sliding-window": {"layer_types": ["sliding_attention"] * 2, "use_sliding_window": True},
    }
    for reason, config in refused.items():
        policy, base = problems(**config)
        assert policy.startswith("problem: policy: ")
        assert base.startswith("problem: training.warm_start.base: ")
        for said in (policy, base):
            assert reason in said
            assert "runs Llama, Qwen2 and Qwen3" in said
            assert "`engine: vllm` or `openai`" in said


def test_a_missing_embedded_policy_is_one_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "models" / "mine" / "warm-start")
    evaluation = {"policies": {"start": missing}}
    config = recipe(tmp_path, "", policy={"model": missing}, evaluation=evaluation)
    assert branchwise("doctor", config, tmp_path / "run") == 2
    said = capsys.readouterr().out
    problems = [line for line in said.splitlines() if line.startswith("problem: ")]
    assert len([line for line in problems if "warm-start" in line]) == 1, problems
    assert "`make warm-start` makes it" in said
