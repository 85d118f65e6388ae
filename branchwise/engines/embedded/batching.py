"""The one thread that steps OpenVINO's continuous batching pipeline."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from branchwise.base import EndpointError, out_of_memory_message


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """One draw.

    Attributes:
        input_ids: Prompt tokens, a tensor of shape (1, tokens).
        config: OpenVINO's generation settings.
        output: Future of the output.
        prompt: The prompt tokens as bytes.
    """

    input_ids: Any
    config: Any
    output: "Future[Any]"
    prompt: bytes


class BatchingThread:
    """Generates from queued requests; at most `max_batch` are in the pipeline at once.

    If a future is cancelled (by the task that awaits it), its generation leaves the batch at the
    next step.

    The pipeline finds a prompt in its cache only if it was read before the request arrived. So
    further draws of a prompt wait until it has been read, and one read serves all of them.
    """

    def __init__(
        self, pipeline: Any, max_batch: int, finish: Callable[[Any], Any] = lambda out: out
    ) -> None:
        """Starts the thread.

        Args:
            pipeline: `openvino_genai.ContinuousBatchingPipeline`; only this thread uses it.
            max_batch: Most generations in the pipeline.
            finish: Called between two steps with each output; returns the future's result.
        """
        self._pipeline = pipeline
        self._max_batch = max_batch
        self._finish = finish
        self._waiting: queue.SimpleQueue[Generation | None] = queue.SimpleQueue()
        self._running: dict[Generation, Any] = {}  # with OpenVINO's handles
        self._reading: dict[bytes, Generation] = {}
        self._held: list[Generation] = []
        self._lock = threading.Lock()  # a `submit` is fully before or fully after `_end`
        self._closing = False
        self._ended = EndpointError("the embedded engine is closed", fatal=True)
        self._next_id = 0
        self._thread = threading.Thread(target=self._run, name="openvino-steps", daemon=True)
        self._thread.start()

    @property
    def in_flight(self) -> int:
        """Generations in the pipeline."""
        return len(self._running)

    def submit(self, input_ids: Any, config: Any) -> "Future[Any]":
        """Queues a generation and returns its future output.

        Raises:
            EndpointError: If the thread has ended, with its failure if there was one.
        """
        prompt = input_ids.data.tobytes()
        generation = Generation(input_ids, config, Future(), prompt)
        with self._lock:
            if self._closing:
                raise self._ended
            self._waiting.put(generation)
        return generation.output

    def close(self) -> None:
        """Cancels all generations and ends the thread; waits for the current step."""
        with self._lock:
            self._closing = True
            self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        failure: EndpointError | None = None
        try:
            while self._admit():
                for generation in [g for g in self._running if g.output.cancelled()]:
                    self._running.pop(generation).cancel()
                if self._pipeline.has_non_finished_requests():
                    self._pipeline.step()
                self._hand_out()
        except Exception as error:
            failure = EndpointError(f"OpenVINO failed while generating: {error}", fatal=True)
            failure.__cause__ = error
        self._end(failure)

    def _admit(self) -> bool:
        """Fills the batch; sleeps while it is empty. Returns False if the thread must end."""
        # Held draws first, or a stream of new prompts could keep them out of a full batch.
        for generation in [held for held in self._held if held.prompt not in self._reading]:
            if len(self._running) < self._max_batch:
                self._held.remove(generation)
                self._start(generation)
        while len(self._running) < self._max_batch and not self._closing:
            try:
                new = self._waiting.get(block=not (self._running or self._held))
            except queue.Empty:
                break
            if new is None:
                continue
            if new.prompt in self._reading:
                self._held.append(new)
            else:
                self._reading[new.prompt] = new
                self._start(new)
        return not self._closing

    def _start(self, generation: Generation) -> None:
        if generation.output.cancelled():
            return
        self._next_id += 1
        try:
            self._running[generation] = self._pipeline.add_request(
                self._next_id, generation.input_ids, generation.config
            )
        except Exception as error:  # e.g. an invalid expression; the other generations continue
            if out_of_memory_message(error):
                raise
            _fail(generation, EndpointError(f"OpenVINO refused a request: {error}"))

    def _hand_out(self) -> None:
        for prompt, generation in list(self._reading.items()):
            handle = self._running.get(generation)
            # A first token shows that the prompt is in the cache. Without a handle, the generation
            # was cancelled or refused, so held draws have nothing to wait for.
            if handle is None or handle.can_read():
                del self._reading[prompt]
        for generation, handle in list(self._running.items()):
            status = handle.get_status().name
            if status == "RUNNING":
                continue
            del self._running[generation]
            outputs = handle.read_all()
            if status == "FINISHED" and outputs:
                _deliver(generation, self._finish(outputs[0]))
            else:
                reason = f"OpenVINO dropped a request ({status}). It may be too long for the cache"
                _fail(generation, EndpointError(reason))

    def _end(self, error: EndpointError | None) -> None:
        """Settles every remaining future, so that no caller waits forever."""
        with self._lock:
            self._closing = True
            self._ended = error or self._ended
        for handle in self._running.values():
            handle.cancel()
        unfinished: list[Generation | None] = [*self._running, *self._held]
        self._running.clear()
        while not self._waiting.empty():
            unfinished.append(self._waiting.get())
        for generation in filter(None, unfinished):
            if error is None:
                generation.output.cancel()
            else:
                _fail(generation, error)


def _deliver(generation: Generation, output: Any) -> None:
    # False if it was cancelled. True also prevents a later cancellation from racing the result.
    if generation.output.set_running_or_notify_cancel():
        generation.output.set_result(output)


def _fail(generation: Generation, error: EndpointError) -> None:
    if generation.output.set_running_or_notify_cancel():
        generation.output.set_exception(error)
