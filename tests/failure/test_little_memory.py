"""`ulimit -v`: a process that is given too little ends with a sentence that says what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from durable import World
from stages import LONGEST_S, REPOSITORY, Ended

pytestmark = pytest.mark.failure


def limited(kib: int, folder: Path, *words: object) -> Ended:
    """A stage in a process that may use so many KiB of addresses."""
    command = [sys.executable, "-m", "pipelines.cli", *map(str, words)]
    path = os.pathsep.join((str(REPOSITORY), os.environ.get("PYTHONPATH", "")))
    ended = subprocess.run(
        ["bash", "-c", f'ulimit -v {kib}; exec "$@"', "bash", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "OPENAI_API_KEY": "test-key"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LONGEST_S,
        text=True,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout)


def is_told(ended: Ended, kib: int) -> None:
    assert ended.code == 1, ended.said
    assert "Traceback" not in ended.said
    assert ended.said.count("error: memory ran out (") == 1
    assert f"may use {kib / 2**20:.1f} GiB of addresses (`ulimit -v`)" in ended.said
    assert "raise that limit" in ended.said


@pytest.mark.parametrize("stage", ["annotate", "inspect"])
@pytest.mark.parametrize("kib", [100_000, 300_000, 500_000])
def test_too_little_to_begin_is_told(stage: str, kib: int, world: World, tmp_path: Path) -> None:
    run = world.whole if stage == "inspect" else tmp_path / "run"
    is_told(limited(kib, tmp_path, stage, "--config", world.recipe, "--run", run), kib)


@pytest.mark.parametrize("kib", [800_000, 1_500_000])
def test_little_is_enough_for_what_needs_little(kib: int, world: World, tmp_path: Path) -> None:
    """Threads and pools that reserve much would crash `inspect` here, or have it wait for ever."""
    run = tmp_path / "run"
    grown = limited(kib, tmp_path, "annotate", "--config", world.recipe, "--run", run)
    assert grown.code == 0, grown.said
    inspected = limited(kib, REPOSITORY, "inspect", "--run", run)
    assert inspected.code == 0, inspected.said


@pytest.mark.parametrize("kib", [1_000_000, 2_000_000])
def test_a_training_without_room_for_torch_is_told(kib: int, world: World, tmp_path: Path) -> None:
    words = ("train-dpo", "--run", world.whole, "--set", "policy.weights=packaged")
    ended = limited(kib, tmp_path, *words)
    is_told(ended, kib)
    assert "torch" in ended.said


@pytest.mark.model
@pytest.mark.parametrize("kib", [1_200_000, 2_000_000, 6_000_000])
def test_the_embedded_engine_without_room_is_told(kib: int, tmp_path: Path) -> None:
    words = ("annotate", "--config", REPOSITORY / "configs" / "atlas.yaml", "--limit", 1)
    is_told(limited(kib, REPOSITORY, *words, "--run", tmp_path / "run"), kib)
