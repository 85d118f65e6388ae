"""kill -9 during `select`: no call is paid twice, and labels and stage files are the same."""

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from durable import rows_of, stored_seeds
from fake_endpoint import FakeEndpoint
from loopback import serving
from seams import Seam
from stages import Ended, Stages
from tiny_dataset import policy, recipe

from branchwise.storage.manifest import verify_manifest

pytestmark = pytest.mark.failure

WRONG = "<answer>Rome</answer>"
DIFFICULTY = {
    **{"rollouts": 6, "easy": 1, "medium": 2},
    "stages": {"1": {"easy": 1}, "2": {"easy": 1, "unsolved": 1}},
}
SEAMS = [
    Seam("rename", "*/config.yaml", "after"),
    Seam("put", nth=3),
    Seam("put", when="after", nth=20),
    Seam("half", "difficulty/.part-*"),
    Seam("rename", "difficulty/part-*", "after"),
    Seam("rename", "*/manifest.json"),
    Seam("rename", "*/manifest.json", "after"),
    Seam("rename", "*/stage-2.jsonl"),
    Seam("close"),
]


def rater(request: dict[str, Any]) -> str:
    """The tiny policy, always right about Lyon and always wrong about money."""
    reply, user = policy(request), request["messages"][-1]["content"]
    if not reply.startswith("<answer>"):
        return reply
    return "<answer>Paris</answer>" if "Lyon" in user else reply if "money" not in user else WRONG


@dataclass
class RatedWorld:
    """The tiny questions behind one endpoint, and the run of an undisturbed selection (`whole`)."""

    endpoint: FakeEndpoint
    config: Path
    stages: Stages
    whole: Path

    def select(self, run: Path, *more: str, seam: Seam | None = None) -> Ended:
        words = ("select", "--config", self.config, "--run", run, *more)
        return self.stages.run(*words, seam=seam)


@pytest.fixture(scope="module")
def rating(tmp_path_factory: pytest.TempPathFactory, stages: Stages) -> Iterator[RatedWorld]:
    folder = tmp_path_factory.mktemp("rating")
    with serving(rater) as endpoint:
        config = recipe(folder, endpoint.base_url, difficulty=DIFFICULTY)
        found = RatedWorld(endpoint, config, stages, folder / "run")
        ended = found.select(found.whole)
        assert ended.code == 0, ended.said
        yield found


def files_of(run: Path) -> dict[str, list[str]]:
    return {file.name: file.read_text().splitlines() for file in (run / "select").glob("*.jsonl")}


@pytest.mark.parametrize("seam", SEAMS, ids=str)
def test_a_killed_selection_resumes_to_the_same_labels(
    seam: Seam, rating: RatedWorld, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    killed = rating.select(run, seam=seam)
    assert killed.code == -signal.SIGKILL, killed.said
    rating.endpoint.settle()
    held, before = stored_seeds(run), len(rating.endpoint.requests)
    assert verify_manifest(run) == []
    resumed = rating.select(run, "--json")
    assert resumed.code == 0, resumed.said
    fresh = [request["seed"] for request in rating.endpoint.requests[before:]]
    assert len(fresh) == len(set(fresh))
    assert not held & set(fresh), "a stored call was repeated"
    assert stored_seeds(run) == stored_seeds(rating.whole)
    assert rows_of(run, "select/difficulty") == rows_of(rating.whole, "select/difficulty")
    assert files_of(run) == files_of(rating.whole)
    assert verify_manifest(run) == []
    totals = json.loads(resumed.said.splitlines()[-1])
    assert totals["failed"] == 0
    assert sum(totals[label] for label in ("easy", "medium", "difficult", "unsolved")) == 6


def test_a_kill_between_files_leaves_the_committed_labels(
    rating: RatedWorld, tmp_path: Path
) -> None:
    """A second selection with other settings must not damage the tables of the first."""
    run = tmp_path / "run"
    rating.select(run)
    before = rows_of(run, "select/difficulty")
    more = ("--set", "difficulty.rollouts=7")
    seam = Seam("rename", "difficulty/part-*", "after")
    assert rating.select(run, *more, seam=seam).code == -signal.SIGKILL
    assert verify_manifest(run) == []
    assert rows_of(run, "select/difficulty") == before
