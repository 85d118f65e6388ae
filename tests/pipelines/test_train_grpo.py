"""`train-grpo`: what it refuses, and what it says before it begins."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from little_world import recipe

from pipelines.cli import main

REPOSITORY = Path(__file__).resolve().parents[2]
SUPPORT = REPOSITORY / "tests" / "support"
GRPO = {
    "batches": 3,
    "batch_questions": 2,
    "group_size": 4,
    "lr": 5e-3,
    "precision": "float32",
    "questions": 6,
}


@dataclass
class Desk:
    """A folder with a recipe, where the stage runs.

    Attributes:
        policy, grpo: Blocks of the recipe.
    """

    folder: Path
    policy: dict[str, Any]
    grpo: dict[str, Any]

    @property
    def config(self) -> Path:
        return recipe(
            self.folder,
            "",
            agent={"protocol": "search-r1", "max_steps": 4},
            rewards={"scheme": "eval-rar", "reward": "em"},
            mcts={"kind": "chains"},
            policy=self.policy,
            training={"grpo": self.grpo},
        )

    def refused(self, capsys: pytest.CaptureFixture[str]) -> str:
        """Returns why the stage is refused; nothing may be left of it."""
        assert self.code() == 2
        assert not (self.folder / "run").exists() and not (self.folder / "models").exists()
        return capsys.readouterr().out

    def code(self, *more: str) -> int:
        """Runs the stage in this process."""
        words = ("--config", str(self.config), "--run", str(self.folder / "run"), *more)
        with pytest.raises(SystemExit) as ended:
            main(["train-grpo", *words])
        return int(ended.value.code or 0)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return Desk(
        tmp_path,
        {"engine": "openvino", "model": "packaged", "temperature": 1.0, "top_p": 1.0},
        GRPO,
    )


def test_a_dry_run_says_what_it_costs_and_makes_nothing(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert desk.code("--dry-run", "--limit", "4", "--name", "mine") == 0
    said = capsys.readouterr().out
    assert "protocol search-r1, 4 questions" in said and "models/run/mine" in said
    assert "3 batches of 2 questions, 4 rollouts each; at most 24 rollouts and 96 calls" in said
    assert not (desk.folder / "run").exists() and not (desk.folder / "models").exists()


def test_rollouts_that_cannot_differ_are_refused(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.policy["temperature"] = 0.0
    assert "policy.temperature is 0" in desk.refused(capsys)


@pytest.mark.parametrize("changes", [{"temperature": 0.9}, {"top_p": 0.9}])
def test_the_engine_s_ratio_needs_its_own_distribution(
    changes: dict[str, float], desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.policy |= changes
    desk.grpo = {**GRPO, "ratio": "engine"}
    assert "training.grpo.ratio" in desk.refused(capsys)


def test_a_loss_that_holds_nothing_back_is_refused(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.grpo = {**GRPO, "kl": "k1", "beta": 0.1}
    assert "expected gradient of k1" in desk.refused(capsys)


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_an_endpoint_that_cannot_be_given_weights_is_refused(
    more: tuple[str, ...], desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.policy = {"engine": "openai", "model": "p", "base_url": "http://127.0.0.1:9/v1"}
    desk.policy["weights"] = "packaged"
    assert desk.code(*more) == 2
    assert "policy.engine: openai cannot be given the weights" in capsys.readouterr().out
    assert not (desk.folder / "run").exists()
