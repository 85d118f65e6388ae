"""Run folders: a run resumes only with equal settings, except those that do not affect rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from branchwise.base.errors import ConfigError
from branchwise.engines import model_digest
from branchwise.runs.folder import existing_run, open_run
from branchwise.runs.recipe import Recipe
from branchwise.runs.record import read_record


def recipe(**blocks: Any) -> Recipe:
    return Recipe.model_validate({"name": "x", **blocks})


def written_by_another_version(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Rewrites the record with other settings in `mcts:`, sealed."""
    record = read_record(run)
    assert record is not None
    settings = {**record.recipe, "mcts": change(record.recipe["mcts"])}
    record.model_copy(update={"recipe": settings}).write(run)


def test_every_changed_setting_is_reported_with_both_values(tmp_path: Path) -> None:
    open_run(tmp_path / "run", recipe(), {})
    with pytest.raises(ConfigError, match=r"mcts.kind: was 'tree', now 'chains'") as told:
        open_run(tmp_path / "run", recipe(mcts={"kind": "chains"}, pairs={"min_gap": 0.5}), {})
    assert "pairs.min_gap: was 0.01, now 0.5" in str(told.value)
    assert "mcts.iterations:" not in str(told.value)


def test_a_stored_setting_that_is_unknown_to_this_version_is_rejected(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run", recipe(), {}).folder
    written_by_another_version(run, lambda mcts: mcts | {"widening": 2})
    with pytest.raises(ConfigError, match=r"`mcts.widening`: .* the version of Branchwise that"):
        open_run(run, recipe(), {})


def test_a_setting_missing_from_an_older_run_has_its_default(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run", recipe(), {}).folder
    written_by_another_version(run, lambda mcts: {k: mcts[k] for k in mcts.keys() - {"kind"}})
    assert open_run(run, recipe(), {}).id == existing_run(run).id
    written_by_another_version(run, lambda mcts: {k: mcts[k] for k in mcts.keys() - {"kind"}})
    with pytest.raises(ConfigError, match=r"mcts.kind: was 'tree', now 'chains'"):
        open_run(run, recipe(mcts={"kind": "chains"}), {})


def test_price_api_key_and_training_may_change_when_a_run_resumes(tmp_path: Path) -> None:
    before = open_run(tmp_path / "run", recipe(), {}).id
    policy = {"price_per_million": {"input": 0.1}, "api_key_env": "OTHER_KEY"}
    training = {"dpo": {"lr": 0.001}}
    assert open_run(tmp_path / "run", recipe(policy=policy, training=training), {}).id == before
    assert existing_run(tmp_path / "run").recipe.policy.api_key_env == "OTHER_KEY"


A, B = "http://a:8000/v1", "http://b:8000/v1"


def at(base_url: str, **settings: Any) -> dict[str, Any]:
    return {"engine": "openai", "model": "m", "base_url": base_url, **settings}


def search_at(url: str, **settings: Any) -> dict[str, Any]:
    return {"kind": "http", "url": url, **settings}


MOVES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a vLLM server": ({"policy": at(A, engine="vllm")}, {"policy": at(B, engine="vllm")}),
    "an endpoint with an identity": (
        {"policy": at(A, identity="lab")},
        {"policy": at(B, identity="lab")},
    ),
    "an endpoint that was known by its address": (
        {"policy": at(A)},
        {"policy": at(B, identity=A)},
    ),
    "judge and verifier": (
        {"judge": at(A), "verifier": at(A, identity="lab")},
        {"judge": at(B, identity=f"{A}/"), "verifier": at(B, identity="lab")},
    ),
    "a vendor that the new address does not show": (
        {"policy": at("https://api.mistral.ai/v1")},
        {"policy": at(B, identity="https://api.mistral.ai/v1", server="mistral")},
    ),
    "a search server": (
        {"retrieval": search_at("http://a:8001")},
        {"retrieval": search_at("http://b:8001/retrieve", identity="wiki")},
    ),
}
"""Settings before and after a move that leaves a run the same."""


@pytest.mark.parametrize("move", MOVES)
def test_a_run_stays_the_same_when_its_server_moves(tmp_path: Path, move: str) -> None:
    before, after = (recipe(**blocks) for blocks in MOVES[move])
    run = open_run(tmp_path / "run", before, {})
    assert open_run(tmp_path / "run", after, {}).id == run.id
    assert open_run(tmp_path / "elsewhere" / "another-name", after, {}).id == run.id
    assert before.digest() == after.digest(), "a study would repeat its stages"
    for old, new in ((before.policy, after.policy), (before.judge, after.judge)):
        if old is not None and new is not None and new.engine != "openvino":
            assert model_digest(old) == model_digest(new)
    assert existing_run(tmp_path / "run").recipe == after, "later stages use the new address"


def test_another_address_without_an_identity_is_refused_with_the_identity_to_set(
    tmp_path: Path,
) -> None:
    open_run(tmp_path / "run", recipe(policy=at(A)), {})
    for policy in (at(B), at(A, identity="lab")):
        with pytest.raises(ConfigError, match=f"policy.identity: was '{A}', now '") as refused:
            open_run(tmp_path / "run", recipe(policy=policy), {})
        assert "restore these" in str(refused.value)


@pytest.mark.parametrize(
    "change", [{"name": "y"}, {"seed": 1}, {"cycle": 1}, {"mcts": {"iterations": 3}}]
)
def test_runs_of_other_settings_have_other_ids(tmp_path: Path, change: dict[str, Any]) -> None:
    first = open_run(tmp_path / "first", recipe(), {})
    assert open_run(tmp_path / "second", recipe(**change), {}).id != first.id


def test_a_model_at_another_endpoint_does_not_inherit_the_identity() -> None:
    blocks: dict[str, Any] = {
        "evaluation": {
            "policies": {
                "same": {"model": "other"},
                "elsewhere": {"model": "m", "base_url": "http://c:8000/v1"},
                "named": {"model": "m", "base_url": "http://c:8000/v1", "identity": "c"},
                "embedded": {"model": "packaged", "engine": "openvino"},
            },
            "baseline_model": {"model": "m", "base_url": "http://d:8000/v1"},
            "judge": {"base_url": "http://c:8000/v1"},
        },
        "judge": at(A, identity="judges"),
        "difficulty": {"policy": {"model": "m", "base_url": "http://e:8000/v1"}},
    }
    whole = recipe(policy=at(A, identity="lab"), **blocks)
    known_as = {
        name: under_test.model.endpoint_identity
        for name, under_test in whole.policies_under_test("x").items()
    }
    assert known_as == {
        "same": "lab",
        "elsewhere": "http://c:8000/v1",
        "named": "c",
        "embedded": None,
    }
    assert whole.reader("x").model.endpoint_identity == "http://d:8000/v1"
    assert whole.rater("x").model.endpoint_identity == "http://e:8000/v1"
    assert whole.answer_judge is not None
    assert whole.answer_judge.endpoint_identity == "http://c:8000/v1"
    names = {model_digest(under.model) for under in whole.policies_under_test("x").values()}
    assert len(names) == 4
