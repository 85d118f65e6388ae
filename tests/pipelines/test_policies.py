"""`eval` of policies that differ in protocol, budget, temperature and engine."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import branchwise, evaluated
from fake_endpoint import FakeEndpoint
from loopback import serving
from tiny_dataset import QUESTIONS, policy, recipe

from branchwise.base.errors import ConfigError
from branchwise.evaluation.answering import PolicyUnderTest
from branchwise.runs.recipe import Recipe
from branchwise.runs.recipe_file import load_recipe
from branchwise.storage.parts import read_parts
from branchwise.storage.schemas import table_to_records
from branchwise.types import Prediction

UNKNOWN = {"id": "u1", "question": "Who is the mayor?", "answers": [], "answerable": False}


def searching(request: dict[str, Any]) -> str:
    """EVO-RAG policy: one search, then an answer, or a refusal of the unanswerable question."""
    user = request["messages"][-1]["content"]
    if "Search: " not in user:
        return "<search>capital</search>"
    return "<note>a capital</note>" + ("<refuse/>" if "mayor" in user else "<answer>Paris</answer>")


EVO_RAG = {"protocol": "evo-rag", "max_steps": 3}


@pytest.fixture
def here() -> Iterator[FakeEndpoint]:
    with serving(policy, key="key of here", models=("policy", "untrained")) as served:
        yield served


@pytest.fixture
def there() -> Iterator[FakeEndpoint]:
    with serving(searching, key="key of there", models=("searcher",)) as served:
        yield served


@pytest.fixture
def config(
    tmp_path: Path, here: FakeEndpoint, there: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> Path:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HERE", "key of here")
    monkeypatch.setenv("THERE", "key of there")
    monkeypatch.setattr("tiny_dataset.QUESTIONS", [*QUESTIONS, UNKNOWN])
    elsewhere = {"engine": "openai", "base_url": there.base_url, "api_key_env": "THERE"}
    policies = {
        "first": "policy",
        "second": {
            **{"model": "searcher", "temperature": 0.5, "agent": EVO_RAG},
            **elsewhere,
            "max_new_tokens": 200,
        },
    }
    asked = {"source": "jsonl", "questions": str(tmp_path / "questions.jsonl"), "split": None}
    return recipe(
        tmp_path,
        here.base_url,
        policy={
            "engine": "openai", "model": "policy", "base_url": here.base_url, "api_key_env": "HERE",
        },
        evaluation={"policies": policies, "set": asked},
    )  # fmt: skip


def predictions(run: Path, policy: str, name: str) -> dict[str, Prediction]:
    table = read_parts(run, f"eval/{policy}/{name}/predictions")
    return {row.question_id: row for row in table_to_records(table, Prediction)}


def test_each_policy_uses_its_own_protocol_settings_and_endpoint(
    tmp_path: Path, config: Path, here: FakeEndpoint, there: FakeEndpoint
) -> None:
    run, baselines = tmp_path / "run", "evaluation.baselines=[closed-book]"
    assert evaluated(config, run, baselines, "evaluation.baseline_model=untrained") == 0
    (kept,) = (run / "eval").glob("*.json")
    first, second = (predictions(run, policy, kept.stem) for policy in ("first", "second"))
    answerable = {row["id"] for row in QUESTIONS}
    assert set(first) == answerable
    assert set(second) == {*answerable, "u1"}, "only this protocol can refuse"
    assert second["u1"].refused
    assert {row.protocol for row in first.values()} == {"reasonrag"}
    assert {row.protocol for row in second.values()} == {"evo-rag"}
    assert {row.steps for row in second.values()} == {2}
    asked = [(r["temperature"], r["max_tokens"]) for r in (*here.requests, *there.requests)]
    assert set(asked[: len(here.requests)]) == {(0.0, 96)}
    assert set(asked[len(here.requests) :]) == {(0.5, 200)}
    table = (kept.with_suffix(".md")).read_text().splitlines()
    cells = {row.split(" | ")[0]: row.split(" | ")[-1] for row in table if " | all | " in row}
    assert cells["| first"] == "reasonrag |"
    assert cells["| second"] == "evo-rag |"
    assert cells["| closed-book"] == "– |", "a baseline has no protocol in the table"
    assert any(row.startswith("| second − first | all | 6 | ") for row in table), "paired by id"
    made = len(here.requests) + len(there.requests)
    assert evaluated(config, run, baselines, "evaluation.baseline_model=untrained") == 0
    assert len(here.requests) + len(there.requests) == made


def test_max_steps_of_a_policy_limits_its_trajectories(tmp_path: Path, config: Path) -> None:
    assert evaluated(config, tmp_path / "run", "evaluation.policies.second.agent.max_steps=1") == 0
    (kept,) = (tmp_path / "run" / "eval").glob("*.json")
    deciding = json.loads(kept.read_text())["policies"]
    assert deciding["first"].keys() == {"model", "digest"}
    assert deciding["second"]["agent"]["max_steps"] == 1
    assert deciding["second"]["temperature"] == 0.5
    rows = predictions(tmp_path / "run", "second", kept.stem).values()
    assert {row.steps for row in rows} == {1}


def test_a_block_that_repeats_the_recipe_is_the_same_evaluation(
    tmp_path: Path, config: Path
) -> None:
    run = tmp_path / "run"
    for value in ("policy", "{model: policy, agent: {protocol: reasonrag}, temperature: 0.0}"):
        assert evaluated(config, run, f"evaluation.policies={{first: {value}}}") == 0
    assert len(list((run / "eval").glob("*.json"))) == 1


def test_a_policy_inherits_missing_settings_from_the_recipe(config: Path) -> None:
    def second(block: str, *settings: str) -> PolicyUnderTest:
        changes = [f"evaluation.policies={{it: {block}}}", *settings]
        return load_recipe(config, changes).policies_under_test("r")["it"]

    ours = load_recipe(config)
    same = second("{model: 'models/{run}/dpo', agent: {protocol: evo-rag}}")
    assert same.model.model == "models/r/dpo"
    assert (same.agent.protocol, same.agent.max_steps) == ("evo-rag", 6)
    assert same.model.base_url == ours.policy.base_url
    assert same.model.api_key_env == "HERE"
    other = second("{model: m, base_url: 'http://127.0.0.1:1/v1'}")
    assert other.model.engine == "openai"
    assert other.model.api_key_env == "OPENAI_API_KEY", "no key goes to another address"
    larger = second("{model: big}", "policy.weights=hub:o/small").model
    assert larger.base_url == ours.policy.base_url
    assert larger.weights is None, "its tokens are not those of the small model"
    embedded = second("{model: packaged, engine: openvino}")
    assert embedded.model.base_url is None
    assert embedded.model.top_p == ours.policy.top_p


def test_a_dumped_recipe_has_only_the_policy_settings_that_were_given(config: Path) -> None:
    kept = load_recipe(config).model_dump(mode="json")["evaluation"]["policies"]
    assert kept["first"] == "policy"
    assert kept["second"].keys() >= {"model", "agent", "engine", "base_url"}
    assert kept["second"]["agent"] == EVO_RAG
    assert "top_p" not in kept["second"]
    assert Recipe.model_validate(load_recipe(config).model_dump(mode="json")) == load_recipe(config)


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ("{model: policy, agent: {protocol: chess}}", "evaluation.policies.mine.agent.protocol"),
        ("{model: policy, agent: {max_steps: 0}}", "evaluation.policies.mine.agent.max_steps"),
        ("{model: policy, agent: {histroy: contents}}", "did you mean `history`"),
        (
            "{model: policy, agent: {references: given}}",
            "mine.agent.references",
        ),
        ("{model: policy, agent: {protocl: evo-rag}}", "did you mean `protocol`"),
        ("{agent: {protocol: evo-rag}}", "evaluation.policies.mine.model` is missing"),
        ("7", "evaluation.policies.mine"),
        (
            "{model: p, engine: openai, base_url: 'http://127.0.0.1:1/v1?key=1'}",
            "evaluation.policies.mine: ",
        ),
        ("{model: p, api_key_env: sk_live0123456789abcdefg}", "evaluation.policies.mine.api_key"),
    ],
)
def test_an_invalid_policy_is_refused_with_its_setting_name(
    config: Path, block: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        load_recipe(config, [f"evaluation.policies={{mine: {block}}}"])


def test_an_endpoint_policy_without_base_url_is_refused(tmp_path: Path) -> None:
    path = recipe(tmp_path, "", policy={"engine": "openvino"})
    with pytest.raises(ConfigError, match=r"policies\.mine\.base_url is not set"):
        load_recipe(path, ["evaluation.policies={mine: {model: m, engine: openai}}"])


def test_a_policy_with_its_own_endpoint_needs_its_own_price(config: Path) -> None:
    price = {"input": 1, "output": 1}
    more = ["limits.max_usd=1", f"policy.price_per_million={price}"]
    with pytest.raises(ConfigError, match=r"policies\.second\.price_per_million does not set"):
        load_recipe(config, more)
    assert load_recipe(config, [*more, f"evaluation.policies.second.price_per_million={price}"])


@pytest.mark.parametrize("trained", ["{folder}", "{{model: policy, weights: {folder}}}"])
def test_questions_that_a_policy_was_trained_on_are_refused(
    trained: str, tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert branchwise("annotate", config, tmp_path / "grown", "--limit", "2") == 0
    (tmp_path / "dpo").mkdir()
    (tmp_path / "dpo" / "training.json").write_text('{"data": {"run": "grown"}}')
    mine = f"evaluation.policies.mine={trained.format(folder=tmp_path / 'dpo')}"
    assert evaluated(config, tmp_path / "run", mine) == 2
    assert f"were annotated or trained on in {tmp_path}/grown" in capsys.readouterr().out


def test_training_needs_the_weights_that_the_endpoint_serves(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "grown"
    assert branchwise("annotate", config, run, "--limit", "2") == 0
    assert branchwise("train-dpo", config, run, "--dry-run") == 2
    told = capsys.readouterr().out
    assert "policy.weights is not set: name the weights that the endpoint serves" in told


def test_missing_weights_are_an_error_before_any_call(
    tmp_path: Path,
    config: Path,
    here: FakeEndpoint,
    there: FakeEndpoint,
    capsys: pytest.CaptureFixture[str],
) -> None:
    more = "evaluation.policies.mine={model: models/none/dpo, engine: openvino}"
    assert evaluated(config, tmp_path / "run", more) == 2
    told = capsys.readouterr().out
    assert "evaluation.policies.mine: model 'models/none/dpo' does not exist" in told
    assert not here.requests
    assert not there.requests


def test_an_evaluation_does_without_the_reward_model(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scored = (
        "agent.protocol=evo-rag",
        "rewards.scheme=evo-rag",
        "mcts.evaluator=playout",
        "mcts.normalise=true",
        "pairs.score=reward_model",
        "reward_model=models/none/rm",
    )
    settings = [word for setting in scored for word in ("--set", setting)]
    assert branchwise("annotate", config, tmp_path / "run", *settings) == 2
    assert "models/none/rm" in capsys.readouterr().out
    assert evaluated(config, tmp_path / "run", *scored) == 0
