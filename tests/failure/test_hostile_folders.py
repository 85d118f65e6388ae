"""A run folder from somebody else: links, pipes, devices and folders where its files should be.

Each is a sentence that names it, and exit code 2, before anything outside the folder was read or
written. A stage that hangs is told of by `Stages`.
"""

from pathlib import Path

import pytest
from durable import World
from stages import Ended
from strange_files import Strange, link, pipe, sparse

from storage.manifest import verify_manifest

pytestmark = pytest.mark.failure

FILES = {
    "config.yaml": "inspect",
    "provenance.json": "relabel",
    "manifest.json": "inspect",
    "ledger.sqlite": "annotate",
    "trees/part-00001.parquet": "verify",
    "relabelled/mine/labelling.yaml": "diagnose",
    "study/journal.jsonl": "study",
    "curriculum/start.json": "curriculum",
}
"""Files that a stage reads in a run folder, and such a stage."""
MORE = {
    "diagnose": ("--label", "mine", "--no-model"),
    "train-dpo": ("--dry-run",),
    "study": ("--name", "labels", "--dry-run"),
}


def refused(world: World, run: Path, stage: str, name: str) -> Ended:
    """The stage's end, which has to be exit code 2 and the name of the file."""
    config = () if name == "config.yaml" or stage == "inspect" else ("--config", world.recipe)
    before = len(world.seeds)
    ended = world.stages.run(stage, "--run", run, *config, *MORE.get(stage, ()))
    assert ended.code == 2, ended.said
    assert str(run / name) in ended.said
    assert "Traceback" not in ended.said
    assert len(world.seeds) == before, "nothing is paid for"
    return ended


@pytest.mark.parametrize(
    ("name", "strange"), [*((name, link) for name in FILES), ("manifest.json", pipe)]
)
def test_what_is_no_regular_file(
    name: str, strange: Strange, world: World, run: Path, tmp_path: Path
) -> None:
    strange(run / name, tmp_path / "outside")
    before = {path: path.read_bytes() for path in (tmp_path / "outside").iterdir()}
    refused(world, run, FILES[name], name)
    assert before == {path: path.read_bytes() for path in before}, "nothing outside is written"


@pytest.mark.parametrize("name", ["config.yaml", "provenance.json", "manifest.json"])
def test_a_file_that_no_memory_holds(name: str, world: World, run: Path, tmp_path: Path) -> None:
    sparse(run / name, tmp_path / "outside")
    assert "bytes" in refused(world, run, FILES[name], name).said


def test_a_run_that_is_linked_as_a_whole_goes_on(world: World, run: Path, tmp_path: Path) -> None:
    (run / ".#config.yaml").symlink_to("somebody@somewhere.1")  # an editor's own mark
    (tmp_path / "datasets").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "run").symlink_to(run, target_is_directory=True)
    for named in (tmp_path / "links" / "run", tmp_path / "datasets" / "run"):
        again = world.annotate(named)
        assert again.code == 0, again.said
        assert world.stages.run("inspect", "--run", named).code == 0
        assert verify_manifest(named) == []
