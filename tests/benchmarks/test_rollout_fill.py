"""The rollout benchmark: how full its batches are."""

from pathlib import Path

import pytest

from benchmarks.rollout_fill import Watch
from branchwise.engines.embedded.openvino import OpenVINOEngine


def test_the_tail_starts_when_fewer_trajectories_are_left_than_batch_slots() -> None:
    engine = OpenVINOEngine(Path("none.gguf"), model="m", digest="d", max_batch=4)
    watch = Watch(engine, 8)
    watch.stop()
    watch.samples = [(8, 4), (5, 3), (4, 4), (3, 3), (1, 1)]
    assert watch.fill(4) == pytest.approx((11 / 12, 15 / 20, 3 / 5))
