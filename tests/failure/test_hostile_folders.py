"""Run folders from untrusted sources: links, pipes and huge files in place of a run's files.

Each stage exits with code 2 and a message that names the file, before it reads or writes anything
outside the folder. `Stages` reports a stage that hangs.
"""

from pathlib import Path

import pytest
from durable import World
from stages import Ended
from strange_files import Strange, link, pipe, sparse

from branchwise.storage.manifest import verify_manifest

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
"""Files of a run folder, each with a stage that reads it."""
MORE = {
    "diagnose": ("--label", "mine", "--no-model"),
    "train-dpo": ("--dry-run",),
    "study": ("--name", "labels", "--dry-run"),
}


def run_refused_stage(world: World, run: Path, stage: str, name: str) -> Ended:
    """Runs a stage; it must exit with code 2 and name the file."""
    config = () if name == "config.yaml" or stage == "inspect" else ("--config", world.recipe)
    before = len(world.seeds)
    ended = world.stages.run(stage, "--run", run, *config, *MORE.get(stage, ()))
    assert ended.code == 2, ended.said
    assert str(run / name) in ended.said
    assert "Traceback" not in ended.said
    assert len(world.seeds) == before, "no call may be paid for"
    return ended


@pytest.mark.parametrize(
    ("name", "strange"), [*((name, link) for name in FILES), ("manifest.json", pipe)]
)
def test_links_and_pipes_in_a_run_folder_are_refused(
    name: str, strange: Strange, world: World, run: Path, tmp_path: Path
) -> None:
    strange(run / name, tmp_path / "outside")
    before = {path: path.read_bytes() for path in (tmp_path / "outside").iterdir()}
    run_refused_stage(world, run, FILES[name], name)
    assert before == {path: path.read_bytes() for path in before}, (
        "files outside the folder must not change"
    )


@pytest.mark.parametrize("name", ["config.yaml", "provenance.json", "manifest.json"])
def test_a_file_larger_than_memory_is_refused(
    name: str, world: World, run: Path, tmp_path: Path
) -> None:
    sparse(run / name, tmp_path / "outside")
    assert "bytes" in run_refused_stage(world, run, FILES[name], name).said


def test_a_linked_run_folder_works(world: World, run: Path, tmp_path: Path) -> None:
    (run / ".#config.yaml").symlink_to("somebody@somewhere.1")  # an editor's lock file
    (tmp_path / "datasets").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "run").symlink_to(run, target_is_directory=True)
    for named in (tmp_path / "links" / "run", tmp_path / "datasets" / "run"):
        again = world.annotate(named)
        assert again.code == 0, again.said
        assert world.stages.run("inspect", "--run", named).code == 0
        assert verify_manifest(named) == []
