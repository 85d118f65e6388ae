"""The weight sync benchmark, on a random Llama."""

from pathlib import Path

import pytest
from tiny_llama import write_tiny_gguf

from benchmarks.weight_sync import Synced, run
from branchwise.engines.settings import ModelSettings
from branchwise.pipelines.train_grpo.policy_serving import EmbeddedServing
from branchwise.types import Message

pytestmark = pytest.mark.model


@pytest.mark.long
def test_wrong_weights_have_a_larger_error_than_synced_weights(tmp_path: Path) -> None:
    policy = ModelSettings(model=str(write_tiny_gguf(tmp_path / "tiny.gguf")), precision="f16")
    serving = EmbeddedServing(policy, 4, 1, tmp_path / "serving")
    source = Synced(serving, [(Message("user", "Where is Holm?"),)], 1, ("stale", "layer"))
    run(policy, source, lr=1e-2)
    assert len(source.results) == len(source.opened) == 2
    assert (source.results[1].moved or 0) > 0.01 > source.results[1].error
    assert min(source.wrong.values()) > source.results[1].error
