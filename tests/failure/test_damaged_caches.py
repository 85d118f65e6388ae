"""Caches that changed on disk are rebuilt; those that others can change are refused.

Damage to single entries is tested in `tests/storage/test_cache.py` and with each reader.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from damage import Harm, cut, device, fifo, flipped
from durable import World, opened_world, rows_of
from stages import Ended, Stages

pytestmark = pytest.mark.failure


@pytest.fixture(scope="module")
def own_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world whose cache no other module uses."""
    folder = tmp_path_factory.mktemp("caches")
    with Stages(folder) as stages, opened_world(folder, stages) as world:
        yield world


def index_of(world: World) -> Path:
    [index] = (world.recipe.parent / "cache" / "indexes").glob("bm25-*[0-9a-f]")
    return index


def annotated(world: World, run: Path) -> Ended:
    """Annotates; there must be no traceback."""
    ended = world.annotate(run)
    assert "Traceback" not in ended.said
    return ended


def annotate_and_check_rows(world: World, run: Path) -> None:
    """Annotates; the cache must be rebuilt once, and the rows must equal the undisturbed run's."""
    ended = annotated(world, run)
    assert ended.code == 0, ended.said
    assert ended.said.count("damaged, so it is rebuilt") == 1
    for table in ("trees", "pairs"):
        assert rows_of(run, table) == rows_of(world.whole, table)


@pytest.mark.parametrize("harm", [flipped, cut, fifo, device], ids=lambda harm: harm.__name__)
def test_a_damaged_index_is_rebuilt_and_logged_once(
    harm: Harm, own_world: World, tmp_path: Path
) -> None:
    """In every file of an index: `tests/retrieval/test_damaged_index.py`."""
    harm(min(index_of(own_world).iterdir()), Random(0))
    annotate_and_check_rows(own_world, tmp_path / "run")


def test_a_cache_folder_that_others_can_write_is_refused_before_any_call(
    own_world: World, tmp_path: Path
) -> None:
    cache = own_world.recipe.parent / "cache"
    before = cache.stat()
    try:
        cache.chmod(0o777)
        seen = own_world.stages.run("doctor", "--config", own_world.recipe)
        calls = len(own_world.seeds)
        ended = annotated(own_world, tmp_path / "run")
    finally:
        cache.chmod(before.st_mode & 0o7777)
    assert ended.code == 2, ended.said
    assert "BRANCHWISE_CACHE" in ended.said
    assert len(own_world.seeds) == calls
    assert not (tmp_path / "run" / "config.yaml").exists()
    assert seen.code == 2
    assert f"problem: cache: the cache folder {cache}" in seen.said
