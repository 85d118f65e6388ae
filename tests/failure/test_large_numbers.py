"""Numbers too large for a table are refused before any call; all others work."""

import json
from pathlib import Path

import pytest
from durable import World

from branchwise.storage.parts import read_parts

pytestmark = pytest.mark.failure

MOST = 2**63 - 1


FITS = "fit into 64 bits"


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        (f"seed={MOST + 1}", FITS),
        (f"seed={-MOST - 2}", FITS),
        (f"mcts.iterations={2**70}", "less than or equal to 1000000000"),
    ],
    ids=lambda given: given[:40],
)
def test_settings_out_of_range_are_refused_before_any_call(
    setting: str, why: str, world: World, tmp_path: Path
) -> None:
    made = len(world.seeds)
    for stage in ("annotate", "eval"):
        refused = world.stages.run(
            stage, "--config", world.recipe, "--run", tmp_path / "run", "--set", setting
        )
        assert refused.code == 2, refused.said
        assert f"--set {setting.partition('=')[0]}: " in refused.said
        assert why in refused.said
    assert len(world.seeds) == made
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("seed", [MOST, -1])
def test_every_64_bit_seed_is_accepted(seed: int, world: World, tmp_path: Path) -> None:
    run = tmp_path / "run"
    grown = world.annotate(run, "--set", f"seed={seed}", "--limit", "2")
    assert grown.code == 0, grown.said
    assert set(read_parts(run, "trees")["seed"].to_pylist()) == {seed}
    assert world.stages.run("relabel", "--run", run).code == 0
    asked = tmp_path / "asked.jsonl"
    asked.write_text(json.dumps({"id": "x", "question": "Which sea?", "answers": ["Aral"]}))
    settings = {
        "evaluation.set": {"source": "jsonl", "questions": str(asked), "split": None},
        "evaluation.policies": {
            "one": "policy",
            "two": "policy",
        },  # two, so that the table of differences has a row
    }
    words = [
        w for name, value in settings.items() for w in ("--set", f"{name}={json.dumps(value)}")
    ]
    evaluated = world.stages.run("eval", "--run", run, *words)
    assert evaluated.code == 0, evaluated.said


def test_hops_that_do_not_fit_their_column_are_refused(world: World, tmp_path: Path) -> None:
    questions, run = tmp_path / "questions.jsonl", tmp_path / "run"
    row = {"id": "x", "question": "Which sea?", "answers": ["Aral"], "hops": 40_000}
    questions.write_text(json.dumps(row))
    made = len(world.seeds)
    refused = world.annotate(run, "--set", f"data.questions={questions}")
    assert refused.code == 2, refused.said
    assert f"{questions}" in refused.said
    assert "hops" in refused.said
    assert len(world.seeds) == made
