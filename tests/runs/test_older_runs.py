"""A run that an older version began goes on as the same run, whatever settings came since.

`older_run.yaml` is what decides a run's rows, as an older version wrote it into `config.yaml`.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from runs.folder import existing_run, open_run
from runs.recipe import LATER, MAY_CHANGE, Recipe, identity_settings
from runs.seal import SEAL, Seal
from storage.errors import ConfigError
from storage.manifest import begin_manifest

OLDER = Path(__file__).parent / "older_run.yaml"
DIGEST = "2dfa29d9896f"
"""`config_digest` of that run's rows."""
RUN_ID = "0123456789ab"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return write(tmp_path / "run", yaml.safe_load(OLDER.read_text()))


def write(run: Path, kept: dict[str, Any]) -> Path:
    """A run that was started with these settings, whatever today's version thinks of them."""
    seal = Seal(run_id=RUN_ID, token="older", settings=identity_settings(kept))
    (run / "provenance.json").write_text(json.dumps({SEAL: seal.noted()}))
    begin_manifest(run, seal.digest)
    (run / "config.yaml").write_text(yaml.safe_dump(kept))
    return run


def recipe(**changes: Any) -> Recipe:
    kept = yaml.safe_load(OLDER.read_text())
    for name, change in changes.items():
        kept[name] = {**kept[name], **change} if name in kept else change
    return Recipe.model_validate(kept)


def test_its_rows_and_its_run_keep_their_digests(run: Path) -> None:
    assert recipe().decisive_digest == DIGEST, "a new setting belongs into runs.recipe.LATER"
    assert open_run(run, recipe(), {}).id == RUN_ID
    kept = yaml.safe_load((run / "config.yaml").read_text())
    assert kept["mcts"]["kind"] == "tree", "now it says what there is"
    assert existing_run(run).id == open_run(run, recipe(), {}).id == RUN_ID


@pytest.mark.parametrize("path", [p for p in LATER if p.split(".")[0] not in MAY_CHANGE])
def test_a_setting_that_came_since_counts_once_it_is_used(path: str) -> None:
    block, _, name = path.partition(".")
    used = {
        "rollout_temperature": 0.5,
        "max_similarity": 0.5,
        "same_action": True,
        "guessable": "drop",
        "confirmed": True,
        "kind": "chains",
        "per_state": "extremes",
        "order": "shuffled",
        "actions": ["answer"],
        "score": "reward_model",
        "normalise": True,
        "verifier": {},
        "reward_model": "models/rm",
        "agent.references": "retrieved",
        "prompt": "instruct",
        "prefill": "<think>",
        "history": "responses",
    }
    value = used.get(path) or used.get(name or block, 7)
    changed = recipe(**{block: {name: value} if name else value})
    assert changed.decisive_digest != DIGEST
    assert changed.digest(block) != recipe().digest(block)


def test_a_setting_that_came_since_is_refused_once_it_is_another(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"mcts.kind: was 'tree', now 'chains'") as told:
        open_run(run, recipe(mcts={"kind": "chains"}, pairs={"min_gap": 0.5}), {})
    assert "pairs.min_gap: was 0.01, now 0.5" in str(told.value)
    assert str(told.value).count(": was ") == 2


def test_what_today_s_settings_cannot_hold_is_a_change(run: Path) -> None:
    kept = yaml.safe_load(OLDER.read_text())
    write(run, {**kept, "mcts": {**kept["mcts"], "widening": 2}})
    with pytest.raises(ConfigError, match=r"`mcts.widening`: .* the version of Branchwise that"):
        open_run(run, recipe(), {})


def test_price_and_key_may_be_named_when_a_run_goes_on(run: Path) -> None:
    before = existing_run(run).id
    policy = {"price_per_million": {"input": 0.1}, "api_key_env": "OTHER_KEY"}
    assert open_run(run, recipe(policy=policy), {}).id == before
    assert open_run(run, recipe(), {}).id == before


@pytest.mark.parametrize("engine", ["vllm", "openai"])
def test_a_vllm_server_may_move_and_no_other_endpoint(tmp_path: Path, engine: str) -> None:
    def at(port: int) -> Recipe:
        return recipe(policy={"engine": engine, "base_url": f"http://127.0.0.1:{port}/v1"})

    before = open_run(tmp_path / "run", at(8000), {}).id
    if engine == "vllm":
        assert open_run(tmp_path / "run", at(8001), {}).id == before
    else:
        with pytest.raises(ConfigError, match=r"policy.base_url: was '.*:8000/v1', now"):
            open_run(tmp_path / "run", at(8001), {})


def test_what_may_change_is_not_asked_for(run: Path) -> None:
    kept = yaml.safe_load(OLDER.read_text())
    write(run, {**kept, "training": {"gone": 1}})
    assert open_run(run, recipe(), {}).id
