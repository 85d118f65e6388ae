"""Fixtures for all tests of this folder: one warm process, one endpoint, one undisturbed run."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from durable import Held, World, opened_world, stored_seeds
from stages import Stages


@pytest.fixture(scope="session")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    with Stages(tmp_path_factory.mktemp("stages")) as warm:
        yield warm


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, stages: Stages) -> Iterator[World]:
    with opened_world(tmp_path_factory.mktemp("world"), stages) as opened:
        yield opened


@pytest.fixture(scope="session")
def two_at_a_time(tmp_path_factory: pytest.TempPathFactory, stages: Stages) -> Iterator[World]:
    """At most two questions at a time, each with one call in flight, so at most two wait."""
    folder = tmp_path_factory.mktemp("two")
    with opened_world(folder, stages, limits={"max_questions_in_flight": 2}) as opened:
        yield opened


@pytest.fixture
def held(two_at_a_time: World) -> Iterator[Held]:
    """Script that answers half of a run's calls and holds the others."""
    script = Held(free=len(stored_seeds(two_at_a_time.whole)) // 2, full_at=2)
    with two_at_a_time.scripted(script):
        yield script


@pytest.fixture
def run(world: World, tmp_path: Path) -> Path:
    """A copy of the finished run, which the test may change."""
    return Path(shutil.copytree(world.whole, tmp_path / "run"))
