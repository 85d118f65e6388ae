"""Run folders: a run resumes only with equal settings, except those that do not affect rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from branchwise.base.errors import ConfigError
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


@pytest.mark.parametrize("engine", ["vllm", "openai"])
def test_the_url_of_a_vllm_server_may_change_but_not_of_another_endpoint(
    tmp_path: Path, engine: str
) -> None:
    def at(port: int) -> Recipe:
        return recipe(policy={"engine": engine, "base_url": f"http://127.0.0.1:{port}/v1"})

    before = open_run(tmp_path / "run", at(8000), {}).id
    if engine == "vllm":
        assert open_run(tmp_path / "run", at(8001), {}).id == before
    else:
        with pytest.raises(ConfigError, match=r"policy.base_url: was '.*:8000/v1', now"):
            open_run(tmp_path / "run", at(8001), {})
