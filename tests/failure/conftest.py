"""Fixtures for all tests of this folder: one warm process, one endpoint, one undisturbed run."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from durable import World, opened_world
from stages import Stages


@pytest.fixture(scope="session")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    with Stages(tmp_path_factory.mktemp("stages")) as warm:
        yield warm


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, stages: Stages) -> Iterator[World]:
    with opened_world(tmp_path_factory.mktemp("world"), stages) as opened:
        yield opened


@pytest.fixture
def run(world: World, tmp_path: Path) -> Path:
    """A copy of the finished run, which the test may change."""
    return Path(shutil.copytree(world.whole, tmp_path / "run"))
