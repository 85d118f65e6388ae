"""What the study `atlas-dpo` promises: dev decides, test is asked once, arms share the trees."""

import io
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from sample_records import a_prediction

from pipelines.config import load_recipe
from pipelines.stage import Invocation
from pipelines.studies import arms, atlas_dpo
from pipelines.studies.arms import Arm
from pipelines.studies.lab import Lab

MILD = Arm("mild", "train-dpo", {"pairs.min_gap": 0.1}, {"lr": 1e-5})
BOLD = Arm("bold", "train-dpo", {"pairs.min_gap": 0.2}, {"lr": 1e-3, "epochs": 2})


@dataclass(frozen=True)
class Pretended(Lab):
    """A lab that notes commands and gives what a test wants them to have given."""

    ran: list[tuple[str, Mapping[str, Any], tuple[str, ...]]] = field(default_factory=list)

    def branchwise(self, stage: str, *arguments: str, **given: Any) -> dict[str, Any]:
        settings = given.get("settings") or {}
        self.ran.append((stage, settings, arguments))
        (policy,) = settings.get("evaluation.policies", {"none": ""})
        em = 0.6 if policy.startswith("bold") else 0.5
        return {"set": "s", "policies": [{"policy": policy, "em": em, "f1": em}]}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretended:
    rows = [a_prediction(question_id=f"q{n}", em=float(n % 2)) for n in range(20)]
    monkeypatch.setattr(arms, "predictions_of", lambda *_: rows)
    monkeypatch.setattr(atlas_dpo, "CANDIDATES", (MILD, BOLD, replace(BOLD, name="bold-again")))
    recipe = load_recipe(Path("configs/atlas-dpo.yaml"))
    console = Console(file=io.StringIO(), width=200)
    return Pretended(Invocation(recipe, tmp_path / "run", console=console), (0, 1))


def asked(lab: Pretended, part: str) -> list[str]:
    return [
        next(iter(settings["evaluation.policies"]))
        for stage, settings, _ in lab.ran
        if stage == "eval" and settings["evaluation.part"] == part
    ]


def test_dev_chooses_and_test_is_asked_once_per_arm_and_seed(lab: Pretended) -> None:
    atlas_dpo.atlas_dpo(lab)
    assert asked(lab, "dev") == ["mild-0", "bold-0", "bold-again-0"]
    trained = ["dpo", "sft", "shuffled", "answers"]
    assert asked(lab, "test") == [
        *("warm-start", "same-again", *(f"{name}-0" for name in trained)),
        *(f"{name}-1" for name in trained),
    ]
    assert [stage for stage, _, _ in lab.ran].count("annotate") == 1


def test_arms_learn_from_the_chosen_recipe_s_pairs(lab: Pretended) -> None:
    atlas_dpo.atlas_dpo(lab)
    relabelled = {
        arguments[1]: settings for stage, settings, arguments in lab.ran if stage == "relabel"
    }
    assert relabelled["dpo"] == {"pairs.min_gap": 0.2}
    assert relabelled["shuffled"] == {"pairs.min_gap": 0.2, "pairs.order": "shuffled"}
    assert relabelled["answers"] == {"pairs.min_gap": 0.2, "pairs.actions": ["answer"]}
    (sft,) = (s for stage, s, a in lab.ran if stage == "train-sft" and s["seed"] == 1)
    assert sft == {"seed": 1, "training.sft.epochs": 2}
    dpo = [a for stage, s, a in lab.ran if stage == "train-dpo" and s["seed"] == 1]
    assert [a[1] for a in dpo] == ["dpo", "shuffled", "answers"]


def test_the_table_is_kept(lab: Pretended) -> None:
    atlas_dpo.atlas_dpo(lab)
    kept = (lab.folder / "atlas-dpo.md").read_text()
    assert "dpo − warm-start (primary)" in kept
    assert (lab.folder / "atlas-dpo-claims.csv").read_text().startswith("difference,")
    assert (lab.folder / "atlas-dpo.svg").read_text().lstrip().startswith("<?xml")
