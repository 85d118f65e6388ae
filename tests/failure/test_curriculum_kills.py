"""kill -9 between and within the steps of a curriculum: the same command resumes it."""

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from stages import Ended, Stages
from tiny_llama import write_gguf_header

from branchwise.runs.folder import existing_run
from branchwise.runs.recipe_file import load_recipe
from branchwise.runs.record import dump_recipe
from branchwise.runs.studies.journal import Event, Journal

pytestmark = pytest.mark.failure

LITTLE = {"branchwise.runs.studies.study_runner.CHILD": "little_stages"}
STEPS = [
    "eval evo",
    *(
        f"{step} evo-{cycle}-1"
        for cycle in ("discovery", "refinement")
        for step in ("annotate", "train-rm", "train-dpo", "eval")
    ),
]

SHORT = ("curriculum.cycles.discovery=0", "curriculum.reward_model=false")
"""Settings of a curriculum with four steps."""
DEATHS = ("1 begun", "1 made", "2 begun", "3 made", "4 begun")
"""When each attempt is killed, in order (see `little_stages`)."""


@dataclass
class LittleCurriculum:
    """A curriculum of two cycles whose stages are `little_stages`."""

    stages: Stages
    folder: Path

    @property
    def run(self) -> Path:
        return self.folder / "evo"

    def start(self, *settings: str, death: str = "") -> Ended:
        """Runs the curriculum until it ends or a stage kills it."""
        words = [word for setting in settings for word in ("--set", setting)]
        environment = {"LITTLE_LOG": str(self.folder / "log"), "LITTLE_DEATH": death}
        recipe = self.folder / "recipe.yaml"
        return self.stages.run(
            *("curriculum", "--config", recipe, "--run", self.run, *words),
            constants=LITTLE,
            environment=environment,
        )

    def log(self) -> list[str]:
        """Returns the lines that the stages logged, without the process id of the curriculum."""
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line.partition(" ")[2] for line in lines]

    def events(self) -> list[Event]:
        return list(Journal(self.run / "curriculum" / "journal.jsonl").events())

    def noted(self) -> list[str]:
        """Returns the steps that the journal lists as done, in order."""
        done = [one.command.split() for one in self.events() if one.event == "done"]
        return [f"{words[1]} {Path(words[3]).name}" for words in done]


@pytest.fixture
def little_curriculum(tmp_path: Path, stages: Stages) -> Iterator[LittleCurriculum]:
    (tmp_path / "start").mkdir()
    write_gguf_header(tmp_path / "start" / "policy.gguf", "weights")
    rows = [{"id": f"q{n}", "question": f"Who made {n}?", "answers": ["Ada"]} for n in range(200)]
    passages = [{"id": "p", "title": "t", "text": "Ada made it."}]
    for name, content in (("questions", rows), ("corpus", passages)):
        lines = "".join(json.dumps(row) + "\n" for row in content)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    data = {name: str(tmp_path / f"{name}.jsonl") for name in ("questions", "corpus")}
    recipe = {
        "name": "evo",
        "data": {"source": "jsonl", "limit": 3, **data},
        "agent": {"protocol": "evo-rag"},
        "policy": {"model": str(tmp_path / "start")},
        "mcts": {"kind": "chains", "iterations": 4, "branches": 2},
        "rewards": {"scheme": "evo-rag"},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    yield LittleCurriculum(stages, tmp_path)


def test_a_killed_curriculum_resumes_without_repeating_a_step(
    little_curriculum: LittleCurriculum,
) -> None:
    for death in DEATHS:
        done, said = little_curriculum.noted(), len(little_curriculum.log())
        killed = little_curriculum.start(death=death)
        assert killed.code == -signal.SIGKILL, killed.said
        begun = [line for line in little_curriculum.log()[said:] if line.startswith("begun")]
        assert begun == [f"begun {step}" for step in STEPS[len(done) :][: len(begun)]]
        assert little_curriculum.noted()[: len(done)] == done
    finished = little_curriculum.start()
    assert finished.code == 0, finished.said
    assert "its policy is models/evo-refinement-1/dpo" in finished.said
    assert little_curriculum.noted() == STEPS, "every step must be noted once, in order"
    table = (little_curriculum.run / "curriculum" / "curriculum.md").read_text()
    assert "| models/evo-refinement-1/dpo | refinement | 7 | 9 | 60.0 |" in table
    whole = little_curriculum.log()
    assert little_curriculum.start().code == 0
    assert little_curriculum.log() == whole, "a finished curriculum must start no stage"
    assert existing_run(little_curriculum.run).record.inputs == {}, (
        "the folder must record no inputs, so its recipe can still annotate there"
    )


def test_a_changed_recipe_or_policy_is_refused(little_curriculum: LittleCurriculum) -> None:
    assert little_curriculum.start(death="2 begun").code == -signal.SIGKILL
    said = little_curriculum.log()
    changed = ("training.dpo.lr=0.5", "curriculum.patience=3", "mcts.iterations=8")
    refused = little_curriculum.start(*changed)
    assert refused.code == 2
    for message in ("training.dpo.lr: was 0.0001, now 0.5", "curriculum.patience: was 2, now 3",
                 "mcts.iterations: was 4, now 8", "give a new --run folder"):  # fmt: skip
        assert message in refused.said
    write_gguf_header(little_curriculum.folder / "start" / "policy.gguf", "other weights")
    refused = little_curriculum.start()
    assert refused.code == 2
    assert "policy: was" in refused.said
    assert little_curriculum.log() == said


def test_settings_are_compared_with_those_at_the_start_not_with_config_yaml(
    little_curriculum: LittleCurriculum,
) -> None:
    assert little_curriculum.start(*SHORT, death="2 begun").code == -signal.SIGKILL
    overwritten = load_recipe(
        little_curriculum.run / "config.yaml", ("data.limit=1", "training.dpo.lr=0.5")
    )
    (little_curriculum.run / "config.yaml").write_text(dump_recipe(overwritten))
    refused = little_curriculum.start(*SHORT, "training.dpo.lr=0.5")
    assert refused.code == 2
    assert "training.dpo.lr: was 0.0001, now 0.5" in refused.said
    finished = little_curriculum.start(*SHORT)
    assert finished.code == 0, finished.said
    steps = ("annotate", "train-dpo", "eval")
    assert little_curriculum.noted() == ["eval evo", *(f"{one} evo-refinement-1" for one in steps)]


def test_limits_and_refinement_cycles_may_be_raised(little_curriculum: LittleCurriculum) -> None:
    assert little_curriculum.start(*SHORT, "limits.max_hours=1").code == 0
    whole = little_curriculum.log()
    more = little_curriculum.start(*SHORT, "limits.max_hours=2", "curriculum.cycles.refinement=2")
    assert more.code == 0, more.said
    begun = [line for line in little_curriculum.log()[len(whole) :] if line.startswith("begun")]
    assert begun == [f"begun {step} evo-refinement-2" for step in ("annotate", "train-dpo", "eval")]
    assert "its policy is models/evo-refinement-1/dpo" in more.said, (
        "the second refinement scores lower"
    )
