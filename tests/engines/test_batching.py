"""The stepping thread, with a pipeline that ends a generation only when it is told to."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from engines.batching import BatchingThread
from storage.errors import EndpointError


class ScriptedHandle:
    def __init__(self, output: str) -> None:
        self.output = output
        self.status = "RUNNING"

    def get_status(self) -> Any:
        return SimpleNamespace(name=self.status)

    def read_all(self) -> list[Any]:
        return [self.output]

    def cancel(self) -> None:
        self.status = "CANCEL"


class ScriptedPipeline:
    """Finishes "now" at the next step, "never" not at all; refuses "bad", breaks on "break"."""

    def __init__(self) -> None:
        self.handles: dict[str, ScriptedHandle] = {}
        self.most_at_once = 0
        self.stepped = threading.Event()

    def add_request(self, request_id: int, input_ids: str, generation_config: Any) -> Any:
        if input_ids == "bad":
            raise ValueError("bad expression")
        self.handles[input_ids] = ScriptedHandle(input_ids)
        return self.handles[input_ids]

    def _running(self) -> list[ScriptedHandle]:
        return [h for h in self.handles.values() if h.status == "RUNNING"]

    def has_non_finished_requests(self) -> bool:
        return bool(self._running())

    def step(self) -> None:
        self.most_at_once = max(self.most_at_once, len(self._running()))
        for handle in self._running():
            if handle.output.startswith("break"):
                raise RuntimeError("out of memory")
            if handle.output.startswith("now"):
                handle.status = "FINISHED"
        self.stepped.set()


@pytest.fixture
def pipeline() -> ScriptedPipeline:
    return ScriptedPipeline()


async def test_outputs_reach_their_own_futures_in_batches(pipeline: ScriptedPipeline) -> None:
    thread = BatchingThread(pipeline, max_batch=4)
    names = [f"now {i}" for i in range(20)]
    outputs = await asyncio.gather(*(asyncio.wrap_future(thread.submit(n, None)) for n in names))
    assert outputs == names
    assert pipeline.most_at_once <= 4
    thread.close()


async def test_cancelled_task_frees_its_place(pipeline: ScriptedPipeline) -> None:
    thread = BatchingThread(pipeline, max_batch=1)
    endless = asyncio.ensure_future(asyncio.wrap_future(thread.submit("never", None)))
    await asyncio.to_thread(pipeline.stepped.wait)
    endless.cancel()
    assert await asyncio.wrap_future(thread.submit("now", None)) == "now"
    assert pipeline.handles["never"].status == "CANCEL"
    thread.close()


async def test_refused_request_fails_alone_and_a_broken_pipeline_fails_all(
    pipeline: ScriptedPipeline,
) -> None:
    thread = BatchingThread(pipeline, max_batch=4)
    with pytest.raises(EndpointError, match="bad expression"):
        await asyncio.wrap_future(thread.submit("bad", None))
    endless = asyncio.wrap_future(thread.submit("never", None))
    with pytest.raises(EndpointError, match="out of memory"):
        await asyncio.wrap_future(thread.submit("break", None))
    with pytest.raises(EndpointError, match="out of memory"):
        await endless
    thread.close()
    with pytest.raises(EndpointError, match="closed"):
        thread.submit("now", None)


async def test_close_leaves_nobody_waiting(pipeline: ScriptedPipeline) -> None:
    thread = BatchingThread(pipeline, max_batch=1)
    futures = [thread.submit("never", None), thread.submit("never too", None)]
    thread.close()
    assert all(future.cancelled() for future in futures)
