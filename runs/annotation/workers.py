"""Grows trees in several processes, for runs that one Python process would slow down.

The parent holds the run: it commits results and counts costs. A worker opens data, index and
engines for itself, claims one question at a time, and writes its calls into the run's only ledger.
A worker ends with its parent.
"""

import asyncio
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from math import ceil
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from annotation.annotator import AnnotatedQuestion
from base.errors import BranchwiseError, BudgetExceeded, ConfigError, EndpointError
from base.memory import out_of_memory_message
from base.terminal_escape import guard_streams
from base.text import Log
from runs.annotation.tree_growing import grow_questions
from runs.factories import open_data, open_index
from runs.progress import Progress
from runs.recipe import Recipe
from runs.stage import STOP_SIGNALS, Gate
from storage.ledger import Ledger
from storage.ledger_rows import Totals
from storage.records import Question

GO, NO_CALLS, NO_QUESTIONS = 0, 1, 2
"""Permissions of the workers: all, no new calls, neither new calls nor new questions."""
REPORT_EVERY_S = 0.2
"""Seconds between cost reports to the parent; a limit can be exceeded by the costs of that time."""

_SPAWN = multiprocessing.get_context("spawn")  # a forked child would inherit threads and sockets


@dataclass(frozen=True)
class WorkerTask:
    """Task of every worker: the run's ledger, its share of the recipe, the pending questions."""

    ledger: Path
    recipe: Recipe
    pending: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """A worker's spending so far, its number of questions in flight, and their finished part.

    `partial` is the sum of their shares of iterations done, in questions; `refused` is whether a
    new call was refused.
    """

    spent: Totals
    in_flight: int
    partial: float
    refused: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """Error that ended a worker early."""

    kind: type[BranchwiseError]
    text: str


WorkerMessage = AnnotatedQuestion | Report | Fault | str


def check_workers_allowed(recipe: Recipe, workers: int) -> None:
    """Checks that all models are at endpoints if there are several workers.

    Raises:
        ConfigError: If a model runs in this process, on all of its cores.
    """
    asked = (recipe.policy, recipe.active_judge, recipe.asked_verifier)
    local = [model for model in asked if model is not None and model.base_url is None]
    if workers > 1 and local:
        raise ConfigError(
            f"--workers {workers}: {local[0].engine}:{local[0].model} would be started once per "
            "worker and already uses every core; workers need models with a base_url (an endpoint, "
            "or a server from `branchwise serve`)"
        )


def per_worker_recipe(recipe: Recipe, workers: int) -> Recipe:
    """Returns the recipe of one worker: its part of the calls and questions in flight."""
    limits = recipe.limits.model_copy(
        update={
            "max_concurrency": ceil(recipe.limits.max_concurrency / workers),
            "max_questions_in_flight": ceil(recipe.questions_in_flight / workers),
        }
    )
    return recipe.model_copy(update={"limits": limits})


class WorkerPool:
    """Workers on one run, whose ledger their parent holds."""

    def __init__(self, task: WorkerTask, workers: int, ledger: Ledger) -> None:
        self._permission: Any = _SPAWN.Value("b", GO, lock=False)
        self._next_index: Any = _SPAWN.Value("q", 0)
        self._processes: dict[Connection, SpawnProcess] = {}
        self._reports: dict[Connection, Report] = {}
        self._first_senders: dict[str, Connection] = {}
        self._task = task
        self._workers = workers
        self._ledger = ledger

    def spent(self) -> Totals:
        """Returns the run's costs from the workers' last reports; exact once they have ended.

        Before that, the last calls of a killed worker are missing.
        """
        return sum((r.spent for r in self._reports.values()), self._ledger.totals())

    async def grown(
        self, gate: Gate, progress: Progress, log: Log
    ) -> AsyncGenerator[AnnotatedQuestion, None]:
        """Yields finished questions until all are done or the gate closes.

        Raises:
            BranchwiseError: The first fault of a worker, after the others have stored their work in
                progress.
        """
        #   parent                                       worker (xN)
        #   shared int: GO < NO_CALLS < NO_QUESTIONS   --read-->  gate of every call and question
        #   shared int: index of the next question     --claim->  takes one question at a time
        #   pipe: AnnotatedQuestion | Report | str | Fault     <--send--  EOF when it ends
        # Only the parent commits parts, and only workers write calls. An EOF with a non-zero exit
        # code is a crash: its questions stay pending.
        faults: list[Fault] = []
        finished = 0
        gate.on_interrupt = lambda: self._forbid(NO_QUESTIONS)
        if gate.interrupted:
            self._forbid(NO_QUESTIONS)
        async with self._at_work() as messages:
            async for pipe, message in messages:
                match message:
                    case AnnotatedQuestion():
                        finished += 1
                        yield message
                    case Report():
                        self._reports[pipe] = message
                        progress.in_flight = sum(r.in_flight for r in self._reports.values())
                        progress.partial[f"worker {pipe.fileno()}"] = message.partial
                        if gate.limit_reached() is not None:
                            self._forbid(NO_CALLS)
                        if message.refused:
                            with suppress(BudgetExceeded):
                                gate.check()  # sets `gate.reason`
                    case str():
                        # All workers report the same pause; log only the first sender's copies.
                        if self._first_senders.setdefault(message, pipe) is pipe:
                            log(message)
                    case Fault():
                        faults.append(message)
                        self._forbid(NO_QUESTIONS)
        if faults:
            raise faults[0].kind(faults[0].text)
        if finished < len(self._task.pending):
            gate.closed()  # sets `gate.reason` after a stop signal

    def _forbid(self, permission: int) -> None:
        self._permission.value = max(self._permission.value, permission)

    @asynccontextmanager
    async def _at_work(
        self,
    ) -> AsyncGenerator[AsyncIterator[tuple[Connection, WorkerMessage]], None]:
        """Runs workers and yields their messages; all have ended when the block ends."""
        try:
            for _ in range(self._workers):
                self._start()
            async with aclosing(_messages(self._processes)) as messages:
                yield messages
        finally:
            for process in self._processes.values():
                process.kill()
                process.join()
            self._reports.clear()
            self._ledger.recount()

    def _start(self) -> None:
        ours, theirs = _SPAWN.Pipe(duplex=False)
        process = _SPAWN.Process(
            target=work, args=(self._task, theirs, self._permission, self._next_index), daemon=True
        )
        process.start()
        theirs.close()  # or `ours` would never reach EOF
        self._processes[ours] = process


async def _messages(
    pipes: dict[Connection, SpawnProcess],
) -> AsyncGenerator[tuple[Connection, WorkerMessage], None]:
    loop = asyncio.get_running_loop()
    heard: asyncio.Queue[tuple[Connection, WorkerMessage | None]] = asyncio.Queue()

    def tell(pipe: Connection, message: WorkerMessage | None) -> None:
        with suppress(RuntimeError):  # the loop is closed, so the message is not needed
            loop.call_soon_threadsafe(heard.put_nowait, (pipe, message))

    def listen(pipe: Connection) -> None:
        with suppress(EOFError, OSError):
            while True:
                tell(pipe, pipe.recv())
        tell(pipe, None)

    for pipe in pipes:
        threading.Thread(target=listen, args=(pipe,), daemon=True).start()
    talking = len(pipes)
    while talking:
        pipe, message = await heard.get()
        if message is None:
            talking -= 1
            message = await asyncio.to_thread(_exit_fault, pipes[pipe])
        if message is not None:
            yield pipe, message


def _exit_fault(process: SpawnProcess) -> Fault | None:
    """Returns the fault of a worker that died without reporting it."""
    process.join()
    if not process.exitcode:
        return None
    how = f"signal {-process.exitcode}" if process.exitcode < 0 else f"code {process.exitcode}"
    return Fault(
        BranchwiseError,
        f"worker {process.pid} ended with {how} (signal 9 usually means out of memory: use fewer "
        "--workers); its questions are pending, rerun the same command to resume",
    )


def work(task: WorkerTask, pipe: Connection, permission: Any, next_index: Any) -> None:
    """Runs a worker process."""
    for one in STOP_SIGNALS:
        signal.signal(one, signal.SIG_IGN)  # the parent handles it and passes it on
    guard_streams()
    _end_with_parent()
    try:
        asyncio.run(_work(task, pipe, WorkerGate(permission), next_index))
    except BranchwiseError as error:
        # Kinds of endpoint errors have further arguments, which the parent does not need.
        kind = EndpointError if isinstance(error, EndpointError) else type(error)
        pipe.send(Fault(kind, str(error)))
    except Exception as error:
        said = out_of_memory_message(error)
        why = f"{said}: use fewer --workers" if said else f"\n{traceback.format_exc()}"
        pipe.send(Fault(BranchwiseError, f"a worker failed: {why}"))
    finally:
        pipe.close()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            connection.wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


async def _work(task: WorkerTask, pipe: Connection, gate: "WorkerGate", next_index: Any) -> None:
    data = open_data(task.recipe)
    by_id = {question.id: question for question in data.questions}
    pending = claim_questions([by_id[identity] for identity in task.pending], next_index)
    retriever = open_index(task.recipe, data.passages, pipe.send)
    with Ledger(task.ledger, shared=True) as ledger:
        progress = Progress("worker", len(task.pending))
        growing = grow_questions(task.recipe, pending, retriever, ledger, gate, progress, pipe.send)
        async with _reporting(pipe, ledger, progress, gate), aclosing(growing) as finished:
            async for annotated in finished:
                pipe.send(annotated)


@asynccontextmanager
async def _reporting(
    pipe: Connection, ledger: Ledger, progress: Progress, gate: "WorkerGate"
) -> AsyncGenerator[None, None]:
    def report_now() -> Report:
        partial = sum(progress.partial.values())
        return Report(ledger.totals(), progress.in_flight, partial, gate.refused)

    async def report() -> None:
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            pipe.send(report_now())

    reporter = asyncio.create_task(report())
    try:
        yield
    finally:
        reporter.cancel()
        pipe.send(report_now())


def claim_questions(pending: Sequence[Question], next_index: Any) -> Iterator[Question]:
    """Yields questions that no other worker has claimed, one at a time."""
    while True:
        with next_index.get_lock():
            number = next_index.value
            next_index.value += 1
        if number >= len(pending):
            return
        yield pending[number]


class WorkerGate:
    """A worker's gate, controlled by the parent's permission (`GO` …)."""

    def __init__(self, permission: Any) -> None:
        self._permission = permission
        self.refused = False

    def check(self) -> None:
        """Lets one new call through.

        Raises:
            BudgetExceeded: If the parent forbids new calls.
        """
        if self._permission.value != GO:
            self.refused = True
            raise BudgetExceeded("stopped; rerun the same command to resume")

    def admit(self, questions: Iterable[Question]) -> Iterator[Question]:
        """Yields questions while the parent admits them."""
        waiting = iter(questions)
        while not self.refused and self._permission.value != NO_QUESTIONS:
            question = next(waiting, None)
            if question is None:
                return
            yield question
