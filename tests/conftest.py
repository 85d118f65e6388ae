"""Shared fixtures and settings. No test has a deadline, and each tokenizer is read once."""

import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from fake_endpoint import FakeEndpoint
from hypothesis import settings
from loopback import serving
from tiny_dataset import policy

from branchwise.weights import policies as policy_files

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

# A shell's background jobs ignore Ctrl-C, those of `nohup` ignore a hangup, and so would the
# processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Reading the packaged tokenizer takes seconds. Patched here, before a test module imports it.
setattr(policy_files, "tokenizer_of", cache(policy_files.tokenizer_of))  # noqa: B010


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    """Endpoint on loopback that serves the policy of `tiny_dataset`."""
    with serving(policy) as served:
        yield served


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets an empty cache folder for the test, and a key for the endpoint."""
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", "test-key")


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: None) -> None:
    """Makes the test's folder the working directory, with an empty cache in it."""
    monkeypatch.chdir(tmp_path)
