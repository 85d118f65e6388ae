"""kill -9 between and within the steps of a curriculum: the same command goes on."""

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from stages import Ended, Stages
from tiny_llama import write_gguf_header

from runs.folder import dump_recipe, noted_inputs
from runs.recipe_file import load_recipe
from runs.studies.journal import Event, Journal

pytestmark = pytest.mark.failure

LITTLE = {"runs.studies.study_runner.CHILD": "little_stages"}
STEPS = [
    "eval evo",
    *(
        f"{step} evo-{cycle}-1"
        for cycle in ("discovery", "refinement")
        for step in ("annotate", "train-rm", "train-dpo", "eval")
    ),
]

DEATHS = ("1 begun", "1 made", "2 begun", "3 made", "4 begun")
"""When the curriculum is killed, one attempt after the other (see `little_stages`)."""


@dataclass
class Desk:
    """A curriculum of two cycles whose stages are `little_stages`."""

    stages: Stages
    folder: Path

    @property
    def run(self) -> Path:
        return self.folder / "evo"

    def start(self, *settings: str, death: str = "") -> Ended:
        """Run the curriculum until it ends, or a stage kills it."""
        words = [word for setting in settings for word in ("--set", setting)]
        told = {"LITTLE_LOG": str(self.folder / "log"), "LITTLE_DEATH": death}
        recipe = self.folder / "recipe.yaml"
        return self.stages.run(
            *("curriculum", "--config", recipe, "--run", self.run, *words),
            constants=LITTLE,
            environment=told,
        )

    def log(self) -> list[str]:
        """What stages said, without whose they were."""
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line.partition(" ")[2] for line in lines]

    def events(self) -> list[Event]:
        return list(Journal(self.run / "curriculum" / "journal.jsonl").events())

    def noted(self) -> list[str]:
        """Steps that are noted as done, in order."""
        done = [one.command.split() for one in self.events() if one.event == "done"]
        return [f"{words[1]} {Path(words[3]).name}" for words in done]


@pytest.fixture
def desk(tmp_path: Path, stages: Stages) -> Iterator[Desk]:
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
    yield Desk(stages, tmp_path)


def test_whatever_kills_it_nothing_is_done_twice(desk: Desk) -> None:
    for death in DEATHS:
        done, said = desk.noted(), len(desk.log())
        killed = desk.start(death=death)
        assert killed.code == -signal.SIGKILL, killed.said
        begun = [line for line in desk.log()[said:] if line.startswith("begun")]
        assert begun == [f"begun {step}" for step in STEPS[len(done) :][: len(begun)]]
        assert desk.noted()[: len(done)] == done
    finished = desk.start()
    assert finished.code == 0, finished.said
    assert "its policy is models/evo-refinement-1/dpo" in finished.said
    assert desk.noted() == STEPS, "each noted once, in order"
    table = (desk.run / "curriculum" / "curriculum.md").read_text()
    assert "| models/evo-refinement-1/dpo | refinement | 7 | 9 | 60.0 |" in table
    whole = desk.log()
    assert desk.start().code == 0
    assert desk.log() == whole, "a finished curriculum starts nothing"
    assert noted_inputs(desk.run) == {}, "its folder may be given rows under the same recipe"


def test_another_recipe_is_refused(desk: Desk) -> None:
    assert desk.start(death="2 begun").code == -signal.SIGKILL
    said = desk.log()
    changed = ("training.dpo.lr=0.5", "curriculum.patience=3", "mcts.iterations=8")
    refused = desk.start(*changed)
    assert refused.code == 2
    for told in ("training.dpo.lr: was 0.0001, now 0.5", "curriculum.patience: was 2, now 3",
                 "mcts.iterations: was 4, now 8", "give a new --run folder"):  # fmt: skip
        assert told in refused.said
    write_gguf_header(desk.folder / "start" / "policy.gguf", "other weights")
    refused = desk.start()
    assert refused.code == 2
    assert "policy: was" in refused.said
    assert desk.log() == said


def test_what_annotate_does_in_its_folder_is_not_what_it_was_begun_with(desk: Desk) -> None:
    assert desk.start(death="2 begun").code == -signal.SIGKILL
    of_another_stage = load_recipe(
        desk.run / "config.yaml", ("data.limit=1", "training.dpo.lr=0.5")
    )
    (desk.run / "config.yaml").write_text(dump_recipe(of_another_stage))
    refused = desk.start("training.dpo.lr=0.5")
    assert refused.code == 2
    assert "training.dpo.lr: was 0.0001, now 0.5" in refused.said
    finished = desk.start()
    assert finished.code == 0, finished.said
    assert desk.noted() == STEPS


def test_limits_and_refinement_may_be_raised(desk: Desk) -> None:
    small = ("curriculum.cycles.discovery=0", "curriculum.reward_model=false")
    assert desk.start(*small, "limits.max_hours=1").code == 0
    whole = desk.log()
    more = desk.start(*small, "limits.max_hours=2", "curriculum.cycles.refinement=2")
    assert more.code == 0, more.said
    begun = [line for line in desk.log()[len(whole) :] if line.startswith("begun")]
    assert begun == [f"begun {step} evo-refinement-2" for step in ("annotate", "train-dpo", "eval")]
    assert "its policy is models/evo-refinement-1/dpo" in more.said, "the second one is worse"
