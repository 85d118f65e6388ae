"""`train-grpo`: refused settings, dry runs, and resuming after a kill."""

import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from durable import stored_keys
from loopback import in_thread
from seams import Seam
from stages import Ended, Stages
from tiny_dataset import recipe
from tiny_llama import write_tiny_folder

from branchwise.base.errors import BudgetExceeded, ConfigError
from branchwise.cli.command_line import main
from branchwise.pipelines.train_grpo.planned_trainings import dev_questions, rollout_recipe
from branchwise.retrieval.index import open_retriever
from branchwise.retrieval.index_server import serving
from branchwise.retrieval.settings import Bm25Settings
from branchwise.runs.folder import existing_run
from branchwise.runs.question_set import check_no_overlap
from branchwise.runs.recipe_file import load_recipe
from branchwise.runs.stage import StageContext
from branchwise.sources.load import load_data
from branchwise.training.curves import read_metrics

ROOT = Path(__file__).parents[2]
GRPO = {
    "batches": 3,
    "batch_questions": 2,
    "group_size": 4,
    "lr": 5e-3,
    "questions": 6,
}


@dataclass
class Workspace:
    """Folder with a recipe, in which the stage runs.

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
            training={"precision": "float32", "grpo": self.grpo},
        )

    def code(self, *more: str) -> int:
        """Runs the stage in this process and returns its exit code."""
        words = ("--config", str(self.config), "--run", str(self.folder / "run"), *more)
        with pytest.raises(SystemExit) as ended:
            main(["train-grpo", *words])
        return int(ended.value.code or 0)


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return Workspace(
        tmp_path,
        {"engine": "openvino", "model": "packaged", "temperature": 1.0, "top_p": 1.0},
        GRPO,
    )


ENDPOINT = "policy={engine: openai, model: p, base_url: 'http://127.0.0.1:9/v1', weights: packaged}"


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--set", "training.lora=null"), "training.lora is null"),
        (("--set", "policy.temperature=0"), "policy.temperature is 0"),
        (("--set", "training.grpo.ratio=engine", "--set", "policy.temperature=0.9"), "grpo.ratio"),
        (("--set", "training.grpo.ratio=engine", "--set", "policy.top_p=0.9"), "grpo.ratio"),
        (("--set", "training.grpo={kl: k1, beta: 0.1}"), "expected gradient of k1"),
        (("--label", "other"), "--label is for training.grpo.rollouts: trees"),
        (("--set", ENDPOINT), "policy.engine: openai cannot load the weights"),
    ],
)
def test_unusable_settings_are_refused_before_anything_is_written(
    words: tuple[str, ...],
    says: str,
    more: tuple[str, ...],
    workspace: Workspace,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert workspace.code(*words, *more) == 2
    assert says in capsys.readouterr().out
    assert not (workspace.folder / "run").exists() and not (workspace.folder / "models").exists()


def test_a_dry_run_prints_the_cost_and_writes_nothing(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert workspace.code("--dry-run", "--limit", "4", "--name", "mine") == 0
    said = capsys.readouterr().out
    assert "protocol search-r1, 4 questions" in said and "models/run/mine" in said
    assert "3 batches of 2 questions, 4 rollouts each; at most 24 rollouts and 96 calls" in said
    assert "expected calls: 24 to 96 for 24 rollouts; bounds from the recipe" in said
    assert not (workspace.folder / "run").exists() and not (workspace.folder / "models").exists()


def test_the_cost_includes_the_evaluations_on_dev(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--config", str(ROOT / "configs" / "arena.yaml"), "--set", "policy.model=packaged")
    with pytest.raises(SystemExit) as ended:
        main(["train-grpo", *words, "--dry-run"])
    said = capsys.readouterr().out
    # 30 batches of 12 questions with 7 rollouts, and 100 dev questions after every fifth batch.
    assert not ended.value.code and "expected calls: 3,120 for 3,120 rollouts" in said
    assert "7 rollouts each, 600 dev answers; at most 3,120 rollouts and 3,120 calls" in said


def test_dev_questions_must_not_be_in_training_or_test_sets() -> None:
    mix = '[{"source": "atlas", "split": "test", "limit": 9}]'
    found = load_recipe(ROOT / "configs" / "arena.yaml", [f"evaluation.mix={mix}"])
    dev = dev_questions(found, ())
    assert {one.split for one in dev} == {"dev"}
    with pytest.raises(ConfigError, match=f"1 of {len(dev)} questions of the split `dev` are"):
        dev_questions(found, dev[:1])


def test_a_verifier_is_refused(tmp_path: Path) -> None:
    verifier = '{"engine": "openai", "model": "v", "base_url": "http://127.0.0.1:9/v1"}'
    found = load_recipe(ROOT / "configs" / "evo-rag.yaml", [f"verifier={verifier}"])
    with pytest.raises(ConfigError, match="train-grpo does not ask a verifier"):
        rollout_recipe(StageContext(found, tmp_path))


def test_an_unreachable_search_server_is_an_error_before_training(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/retrieve"
        search = ("--set", "retrieval.kind=http", "--set", f"retrieval.url={url}")
        assert workspace.code(*search) == 1
    assert f"cannot reach the search server {url}" in capsys.readouterr().out
    assert not (workspace.folder / "run").exists()


def test_the_address_of_the_search_server_does_not_decide_a_training(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that resumes after its search server moved would start again otherwise."""
    deciding: list[Sequence[str]] = []

    def stopped(*_: object, **settings: Any) -> None:
        deciding.append(settings["deciding"])
        raise BudgetExceeded("enough for this test")

    monkeypatch.setattr("branchwise.pipelines.train_grpo.stage._train", stopped)
    passages = load_data(load_recipe(workspace.config).data, 0).passages
    for known in (passages, passages, passages[1:]):
        with in_thread(serving(open_retriever(Bm25Settings(), known))) as url:
            search = ("--set", "retrieval.kind=http", "--set", f"retrieval.url={url}")
            workspace.code(*search)
    assert deciding[0] == deciding[1]
    assert deciding[0] != deciding[2]


@dataclass
class Trained:
    """Training with its own run, in processes that can be killed."""

    stages: Stages
    workspace: Workspace
    name: str

    def run(self, *more: str, seam: Seam | None = None) -> Ended:
        words = ("--config", self.workspace.config, "--run", f"datasets/{self.name}", *more)
        return self.stages.run(
            "train-grpo",
            *words,
            seam=seam,
            environment={"LITTLE_LOG": str(self.log)},
            folder=self.workspace.folder,
        )

    @property
    def log(self) -> Path:
        return self.workspace.folder / f"{self.name}.log"

    @property
    def model(self) -> Path:
        return self.workspace.folder / "models" / self.name / "grpo"

    def calls(self) -> list[str]:
        """Returns the keys of the engine calls since the last call of this method."""
        keys = self.log.read_text().split() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return keys

    def stored(self) -> set[str]:
        return stored_keys(self.workspace.folder / "datasets" / self.name)

    def curve(self) -> list[dict[str, Any]]:
        """Returns the training curve without times.

        It leaves out `canary_moved`, too: a resumed process has no earlier weights to compare
        with, so its first batch lacks this value.
        """
        timed = ("seconds", "canary_moved")
        return [
            {k: v for k, v in line.items() if not k.endswith("_s") and k not in timed}
            for line in read_metrics(self.model)
        ]

    def adapter(self) -> bytes:
        return (self.model / "adapter" / "adapter_model.safetensors").read_bytes()


LISTED = "checkpoints/checkpoints.json"
KILLS = [
    Seam("put", nth=20),
    Seam("rename", LISTED),
    Seam("rename", LISTED, "after"),
]
"""In the second batch, and before and after its checkpoint is listed."""


@pytest.mark.model
def test_a_killed_and_resumed_training_gives_the_same_model(workspace: Workspace) -> None:
    workspace.policy["model"] = str(write_tiny_folder(workspace.folder / "tiny"))
    with Stages(workspace.folder, "little_grpo", OMP_NUM_THREADS="1") as stages:
        kill_and_resume(Trained(stages, workspace, "whole"), Trained(stages, workspace, "killed"))


def kill_and_resume(whole: Trained, killed: Trained) -> None:
    workspace = whole.workspace
    done = whole.run()
    assert done.code == 0, done.said
    curve = whole.curve()
    assert len(curve) == 3 and any(line["grad_norm"] > 0 for line in curve)
    assert len(whole.stored()) == len(whole.calls()) == 3 * 2 * 4 * 2
    expected = whole.run("--dry-run").said
    assert "expected calls: 48 for 24 rollouts; from 24 rollouts of this run" in expected
    assert not whole.calls()
    asked = load_data(load_recipe(workspace.config).data, 0).questions
    with pytest.raises(ConfigError, match=r"6 of \d+ evaluation questions were .* trained on"):
        check_no_overlap(workspace.folder / "datasets" / "whole", (), asked)
    kept = existing_run(workspace.folder / "datasets" / "whole").recipe
    recipe = load_recipe(workspace.config)
    assert kept.agent == recipe.agent, "`annotate` would refuse another run"
    assert kept.data.limit == recipe.data.limit, "`annotate` would grow more trees"
    for seam in KILLS:
        before = killed.stored()
        died = killed.run(seam=seam)
        assert died.code == -signal.SIGKILL, died.said
        assert not before & set(killed.calls()), "a stored reply was requested again"
    before = killed.stored()
    resumed = killed.run("--resume")
    assert resumed.code == 0, resumed.said
    assert "resumes from" in resumed.said
    assert not before & set(killed.calls())
    assert killed.stored() == whole.stored()
    assert killed.curve() == curve
    assert killed.adapter() == whole.adapter()

    for setting in ("policy.temperature=0.7", "retrieval.top_k=1"):
        other = killed.run("--resume", "--set", setting)
        assert other.code == 1 and "checkpoints of another training" in other.said, setting
    assert killed.adapter() == whole.adapter(), "the trained adapter was changed"
