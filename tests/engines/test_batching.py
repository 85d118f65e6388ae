"""The batching thread, with a scripted pipeline instead of OpenVINO."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from branchwise.base.errors import EndpointError
from branchwise.engines.embedded.batching import BatchingThread


class Text(bytes):
    """Stand-in for a tensor of token ids."""

    @property
    def data(self) -> "Text":
        return self

    def tobytes(self) -> bytes:
        return bytes(self)


def text(name: str) -> Text:
    return Text(name.encode())


class ScriptedHandle:
    def __init__(self, output: str) -> None:
        self.output = output
        self.status = "RUNNING"
        self.has_begun = False

    def get_status(self) -> Any:
        return SimpleNamespace(name=self.status)

    def can_read(self) -> bool:
        return self.has_begun or self.status == "FINISHED"

    def read_all(self) -> list[Any]:
        return [self.output]

    def cancel(self) -> None:
        self.status = "CANCEL"


class ScriptedPipeline:
    """Finishes "now" at the next step and "never" not at all; refuses "bad", fails on "break"."""

    def __init__(self) -> None:
        self.handles: dict[str, ScriptedHandle] = {}
        self.begun: list[ScriptedHandle] = []
        self.most_at_once = 0
        self.stepped = threading.Event()

    def add_request(self, request_id: int, input_ids: Any, generation_config: Any) -> Any:
        name = input_ids.data.decode()
        if name == "bad":
            raise ValueError("bad expression")
        self.handles[name] = handle = ScriptedHandle(name)
        self.begun.append(handle)
        return handle

    @property
    def added(self) -> list[str]:
        return [handle.output for handle in self.begun]

    def _running(self) -> list[ScriptedHandle]:
        return [h for h in self.begun if h.status == "RUNNING"]

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
    outputs = await asyncio.gather(
        *(asyncio.wrap_future(thread.submit(text(n), None)) for n in names)
    )
    assert outputs == names
    assert pipeline.most_at_once <= 4
    thread.close()


async def test_a_cancelled_task_frees_its_slot(pipeline: ScriptedPipeline) -> None:
    thread = BatchingThread(pipeline, max_batch=1)
    endless = asyncio.ensure_future(asyncio.wrap_future(thread.submit(text("never"), None)))
    await asyncio.to_thread(pipeline.stepped.wait)
    endless.cancel()
    assert await asyncio.wrap_future(thread.submit(text("now"), None)) == "now"
    assert pipeline.handles["never"].status == "CANCEL"
    thread.close()


async def test_a_refused_request_fails_alone_and_a_broken_pipeline_fails_all(
    pipeline: ScriptedPipeline,
) -> None:
    thread = BatchingThread(pipeline, max_batch=4)
    with pytest.raises(EndpointError, match="bad expression"):
        await asyncio.wrap_future(thread.submit(text("bad"), None))
    endless = asyncio.wrap_future(thread.submit(text("never"), None))
    with pytest.raises(EndpointError, match="out of memory"):
        await asyncio.wrap_future(thread.submit(text("break"), None))
    with pytest.raises(EndpointError, match="out of memory"):
        await endless
    with pytest.raises(EndpointError, match="out of memory"):
        thread.submit(text("now"), None)
    thread.close()


async def test_close_cancels_all_waiting_requests(pipeline: ScriptedPipeline) -> None:
    thread = BatchingThread(pipeline, max_batch=1)
    futures = [thread.submit(text("never"), None), thread.submit(text("never too"), None)]
    thread.close()
    assert all(future.cancelled() for future in futures)
    with pytest.raises(EndpointError, match="closed"):
        thread.submit(text("now"), None)


async def test_draws_of_one_prompt_wait_for_its_prefill(pipeline: ScriptedPipeline) -> None:
    """Further draws start when the prompt is in the cache; other prompts do not wait for them."""
    thread = BatchingThread(pipeline, max_batch=4)
    draws = [asyncio.wrap_future(thread.submit(text("slow"), None)) for _ in range(3)]
    assert await asyncio.wrap_future(thread.submit(text("now"), None)) == "now"
    assert pipeline.added == ["slow", "now"]
    pipeline.handles["slow"].has_begun = True
    for more in ("now too", "now again"):  # the thread checks once per step
        assert await asyncio.wrap_future(thread.submit(text(more), None)) == more
    assert pipeline.added.count("slow") == 3
    thread.close()
    await asyncio.gather(*draws, return_exceptions=True)
    assert all(draw.cancelled() for draw in draws)


async def test_draws_that_wait_for_a_prompt_run_after_the_first_draw_ends(
    pipeline: ScriptedPipeline,
) -> None:
    thread = BatchingThread(pipeline, max_batch=2)
    draws = [thread.submit(text("now"), None) for _ in range(5)]
    outputs = await asyncio.gather(*map(asyncio.wrap_future, draws))
    assert outputs == ["now"] * 5 and pipeline.most_at_once <= 2
    thread.close()


async def test_outputs_are_postprocessed_on_the_stepping_thread() -> None:
    """OpenVINO decodes during a step, and concurrent use of its decoder can deadlock."""
    threads: list[str] = []

    def finish(output: str) -> str:
        threads.append(threading.current_thread().name)
        return output.upper()

    thread = BatchingThread(ScriptedPipeline(), max_batch=1, finish=finish)
    try:
        assert await asyncio.wrap_future(thread.submit(text("now"), None)) == "NOW"
    finally:
        thread.close()
    assert threads == ["openvino-steps"]
