"""What tests share. None fails because the machine is slow."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_endpoint import FakeEndpoint
from hypothesis import settings
from loopback import serving
from tiny_dataset import policy

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    """An endpoint on loopback with the policy of `tiny_dataset`."""
    with serving(policy) as served:
        yield served


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of one's own, and a key for the endpoint."""
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", "test-key")
