"""The whole pipeline as a new user runs it, on a few questions, with the real embedded model.

annotate → inspect → relabel → train-dpo → export → eval, each in a process of its own that can
connect only to this machine.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from branchwise.storage.parts import read_parts
from branchwise.storage.schemas import table_to_records
from branchwise.training.curves import read_metrics
from branchwise.types import Pair, Prediction

REPOSITORY = Path(__file__).resolve().parents[2]
LOOPBACK_ONLY = REPOSITORY / "tests" / "support" / "loopback_only"
POLICY = REPOSITORY / "models" / "smollm2-135m-atlas"
SMALL = {
    "policy.model": POLICY,
    "data.cities": 2000,
    "data.limit": 4,
    "mcts.iterations": 8,
    "mcts.temperature": 1.2,  # more varied siblings, so that four questions yield pairs
    "pairs.min_gap": 0.01,  # four questions yield too few pairs of a right and a wrong answer
    "rewards.alpha": 0.9,
    "training.precision": "float32",  # the first loss is ln 2; bfloat16 rounds it
    "training.dpo.batch_size": 4,
    "training.dpo.micro_batch": 2,
    "training.dpo.epochs": 3,  # the first step of a training has a learning rate of 0
    "training.dpo.sft_weight": 0,  # so that the first loss is ln 2
    "evaluation.limit": 4,
    "evaluation.policies": "{dpo: 'models/{run}/dpo', start: '" + str(POLICY) + "'}",
}
SMALL_TURN = {
    "data.cities": 2000,
    "data.limit": 2,
    "policy.model": "models/smoke/warm-start",
    "policy.precision": "q8_0",
    "policy.max_new_tokens": 48,
    "training.warm_start.questions": 6,
    "training.grpo.stages": "[]",
    "training.grpo.batches": 2,
    "training.grpo.batch_questions": 2,
    "training.grpo.group_size": 2,
    "training.grpo.updates": 1,
    "training.grpo.max_tokens": 2000,
    "training.grpo.questions": 2,
    "training.grpo.eval_every": 0,
    "evaluation.limit": 2,
    "evaluation.policies": "{start: 'models/{run}/warm-start'}",
}


@pytest.mark.model
def test_pipeline_from_annotation_to_evaluation_table(tmp_path: Path) -> None:
    run = Path("datasets") / "smoke"
    annotated = branchwise(tmp_path, "annotate", run)
    assert annotated["questions_done"] == 4
    pairs = table_to_records(read_parts(tmp_path / run, "pairs"), Pair)
    assert pairs
    assert all(p.chosen[0].content != p.rejected[0].content and p.reward_gap > 0 for p in pairs)

    again = branchwise(tmp_path, "annotate", run)
    assert again["calls"] == annotated["calls"], "a finished run should make no calls"

    assert branchwise(tmp_path, "relabel", run)["pairs"] == len(pairs)
    counted = branchwise(tmp_path, "inspect", run, SQL="select count(*) from trees")
    assert counted["rows"] == 1

    branchwise(tmp_path, "train-dpo", run)
    model = tmp_path / "models" / "smoke" / "dpo"
    assert read_metrics(model)[0]["loss"] == pytest.approx(0.6931, abs=2e-3), (
        "the first loss should be ln 2"
    )
    adapter = model / "adapter" / "adapter_model.safetensors"
    assert adapter.is_file()

    branchwise(tmp_path, "export", run)
    assert (tmp_path / "models" / "smoke" / "dpo" / "policy.gguf").is_file()

    table = branchwise(tmp_path, "eval", run)
    assert {row["policy"] for row in table["policies"]} == {"dpo", "start"}
    for row in table["policies"]:
        assert row["n"] == 4
        assert row["invalid"] == 0.0, "structured decoding should prevent invalid actions"
    name = f"eval/start/{table['set']}/predictions"
    predictions = table_to_records(read_parts(tmp_path / run, name), Prediction)
    assert all(json.loads(p.trajectory) for p in predictions)


@pytest.mark.model
@pytest.mark.long
@pytest.mark.parametrize("name", ["arena", "r1-searcher", "eval-rar", "search-r1"])
def test_an_outcome_recipe_runs_warm_start_annotation_grpo_and_evaluation(
    name: str, tmp_path: Path
) -> None:
    small: dict[str, Any] = {"config": name, "small": SMALL_TURN}
    run = Path("datasets") / "smoke"
    warm = branchwise(tmp_path, "warm-start", run, **small)
    assert 0 < warm["counts"]["traces"] <= warm["examples"]
    assert branchwise(tmp_path, "annotate", run, **small)["questions_done"] == 2
    branchwise(tmp_path, "relabel", run, **small)
    assert branchwise(tmp_path, "train-grpo", run, **small)["steps"] == 2
    first, second = read_metrics(tmp_path / "models" / "smoke" / "grpo")
    assert first["rollouts"] == second["rollouts"] == 4
    assert "canary_moved" in second, "the engine should serve the updated weights"
    (row,) = branchwise(tmp_path, "eval", run, **small)["policies"]
    assert (row["policy"], row["n"]) == ("start", 2)


def branchwise(
    folder: Path,
    stage: str,
    run: Path,
    config: str = "atlas",
    small: Mapping[str, Any] = SMALL,
    **environment: str,
) -> dict[str, Any]:
    """Runs a stage in `folder` and returns its totals."""
    settings = [word for key, value in small.items() for word in ("--set", f"{key}={value}")]
    config = str(REPOSITORY / "configs" / f"{config}.yaml")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "branchwise", stage, "--config", config),
            *("--run", str(run), "--json", *settings),
        ],
        cwd=folder,
        env={**os.environ, **environment, "PYTHONPATH": f"{LOOPBACK_ONLY}:{REPOSITORY}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    totals: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return totals
