"""Fixtures for tests that train."""

from collections.abc import Iterator

import pytest
from tiny_llama import write_tiny_folder

from branchwise.training import arguments


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a random Llama, from which a file's trainings start."""
    return str(write_tiny_folder(tmp_path_factory.mktemp("base") / "tiny"))


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Runs a file's tests on one thread; for so small a model, more threads are slower."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Sets an empty cache folder for a file's tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRANCHWISE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def frequent_checkpoints() -> Iterator[None]:
    """Saves a checkpoint every two steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arguments, "SAVE_STEPS", 2)
        yield
