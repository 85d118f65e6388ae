"""The context, the limits and the result of a stage."""

import asyncio
import ctypes
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from rich.console import RenderableType

from branchwise.base import BudgetExceeded, ConfigError, Log, terminal_safe
from branchwise.storage import Totals

from .cost_bounds import CostRange
from .recipe import NAME_PATTERN, LimitSettings, Recipe
from .terminal import Terminal

DONE, FAILED, BAD_INPUT, LIMIT_REACHED, TOO_MANY_FAILURES = 0, 1, 2, 3, 4
INTERRUPTED = 130
STOPPING = "stopping: calls in flight will finish and be stored. Press Ctrl-C again to abort them"

Label = Annotated[str | None, "name of the relabelling"]
ModelName = Annotated[str, "of the model"]
ByType = Annotated[bool, "also print rows by question type"]
"""Options of several stages: a type, and its text in `--help`."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def checked_name(name: str) -> str:
    """Returns `name` if it is a valid folder name.

    Raises:
        ConfigError: If it is not.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise ConfigError(
            f"{name!r} is not a valid folder name: use letters, digits, `.`, `_` and `-`"
        )
    return name


@dataclass(frozen=True)
class StageContext:
    """One call of a stage: `branchwise <stage> --config … --run … …`.

    Attributes:
        resume: Whether to fail if the folder has another training's checkpoints. If False, they are
            replaced. Every stage resumes its own checkpoints.
        history: Run whose calls a dry run estimates costs from; None uses this run.
    """

    recipe: Recipe
    run: Path
    resume: bool = False
    dry_run: bool = False
    limit: int | None = None
    history: Path | None = None
    console: Terminal = field(default_factory=Terminal)

    @property
    def limited_recipe(self) -> Recipe:
        """The recipe with `--limit` instead of `data.limit`."""
        if self.limit is None:
            return self.recipe
        data = self.recipe.data.model_copy(update={"limit": self.limit})
        return self.recipe.model_copy(update={"data": data})

    def log(self, text: str) -> None:
        """Prints a message unchanged."""
        self.console.print_line(text)


@dataclass(frozen=True)
class StageResult:
    """Result of a stage.

    Attributes:
        totals: Totals, as `--json` prints them.
        reason: Reason that the stage ended early; None if it did not, or logged the reasons.
        table: Main table that the stage printed, if it has one.
    """

    totals: dict[str, Any]
    exit_code: int = DONE
    reason: str | None = None
    table: RenderableType | None = None


def listed(counts: Mapping[str, int]) -> str:
    """Returns counts by name in words."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def failure_code(
    context: StageContext,
    failed: Counter[str],
    total: int,
    what: str,
    messages: Iterable[str] = (),
) -> int:
    """Logs failures by kind; returns exit code 4 if there are too many, else 0.

    Args:
        total: Number of attempts.
        what: What failed, and how, such as "questions failed".
        messages: Messages of the failures; the most frequent one is shown.
    """
    if failed:
        context.log(f"{failed.total()} of {total} {what}: {listed(failed)}")
    for message, _ in Counter(messages).most_common(1):
        context.log(f"such as: {terminal_safe(message)} (`branchwise doctor` checks the endpoints)")
    if failed.total() > context.recipe.limits.max_failed_share * max(total, 1):
        context.log("that is more than limits.max_failed_share; see `make inspect`")
        return TOO_MANY_FAILURES
    return DONE


@dataclass
class Gate:
    """Admits calls and questions until a limit is reached or a stop signal comes.

    Calls in progress then finish and are stored. A question that needs another call stays pending;
    a rerun replays its stored calls and continues. Spending exceeds a limit at most by the calls in
    progress. Replays are free, and only a second signal stops them.

    Attributes:
        limits: Limits. Tokens and dollars include the run's earlier attempts and stages; hours
            count this attempt only.
        reason: Reason that the gate closed; None while it is open.
    """

    limits: LimitSettings
    spent: Callable[[], Totals] = Totals
    log: Log = lambda text: None
    started: float = field(default_factory=time.monotonic)
    reason: str | None = None
    interrupted: bool = False
    _before: Totals = field(init=False)

    def __post_init__(self) -> None:
        self._before = self.spent()

    def check(self) -> None:
        """Lets one new call through.

        Raises:
            BudgetExceeded: If a limit is reached or a stop signal came; the gate then also closes
                for questions.
        """
        reason = "interrupted" if self.interrupted else self.limit_reached()
        if reason is not None:
            self.reason = reason
            raise BudgetExceeded(f"{reason}; rerun the same command to resume")

    def limit_reached(self) -> str | None:
        """Returns the limit that is reached, in words; None if there is none."""
        limits, spent = self.limits, self.spent()
        tokens = spent.input_tokens + spent.output_tokens
        hours = (time.monotonic() - self.started) / 3600
        if limits.max_tokens is not None and tokens >= limits.max_tokens:
            return f"limits.max_tokens {limits.max_tokens:,} reached (raise it first)"
        if limits.max_usd is not None and spent.cost_usd >= limits.max_usd:
            return f"limits.max_usd {limits.max_usd} reached (raise it first)"
        if limits.max_hours is not None and hours >= limits.max_hours:
            return f"limits.max_hours {limits.max_hours} reached"
        return None

    def fitting(self, most: int, done: int, begun: float, bound: CostRange) -> int:
        """Returns how many questions may be in progress so that the limits let them finish.

        These are at least as many as the limits pay for at the highest of their bounds. Beyond
        that, a question is assumed to cost what those of this attempt cost on average, the parts of
        running ones included. Few questions may not be typical, so at most two run for each that is
        done.

        Args:
            most: Most questions in progress.
            done: Questions that this attempt finished.
            begun: Sum of the parts of running questions that are done, each from 0 to 1.
            bound: Bounds of a question's cost.

        Returns:
            A number from 1 to `most`.
        """
        before, now, limits = self._before, self.spent(), self.limits
        dollars = bound.cost_usd[1] if bound.cost_usd is not None else 0.0
        budgets = (
            (limits.max_usd, before.cost_usd, now.cost_usd, dollars),
            (
                limits.max_tokens,
                before.input_tokens + before.output_tokens,
                now.input_tokens + now.output_tokens,
                bound.input_tokens[1] + bound.output_tokens[1],
            ),
        )
        for limit, at_start, at_present, highest in budgets:
            if limit is None or highest <= 0:
                continue
            budget_left = limit - at_start
            certain = int(budget_left / highest) - done
            average = (at_present - at_start) / (done + begun) if done else highest
            likely = int(budget_left / average) - done if average else most
            most = min(most, max(certain, min(likely, 2 * done)))
        return max(1, most)

    def closed(self) -> bool:
        """Returns whether no further question may start; sets `reason` after a stop signal."""
        if self.interrupted:
            self.reason = "interrupted"
        return self.reason is not None

    def admit(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields questions (or their ids) until the gate closes."""
        for item in items:
            if self.closed():
                return
            yield item

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Closes the gate at the first stop signal; aborts at the second (exit code 130).

        Work of the event loop is aborted between two of its callbacks, never inside one, and by a
        third signal at once.
        """
        signals = aborts = 0

        def abort() -> None:
            nonlocal aborts
            aborts += 1
            raise KeyboardInterrupt

        def abort_once() -> None:
            if not aborts:
                abort()

        def take(signum: int) -> None:
            nonlocal signals
            signals, self.interrupted = signals + 1, True
            if signals == 1:
                _call_soon(lambda: self.log(STOPPING))
            elif signals == 2:
                _call_soon(abort_once)
            else:
                abort()

        with on_stop_signal(take):
            yield

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return INTERRUPTED
        return LIMIT_REACHED if self.reason else DONE

    def stopped(self, totals: dict[str, Any]) -> StageResult:
        """Logs why the gate closed; returns the result of a stage that can be resumed."""
        self.log(f"stopped: {self.reason}; rerun the same command to resume")
        return StageResult(totals, self.exit_code, self.reason)


def _call_soon(function: Callable[[], None]) -> None:
    """Calls a function for a signal handler: in the event loop if one runs, else at once.

    A handler interrupts any code. Text that it printed could be mixed with other output, and an
    error that it raised could be lost, in a finaliser for example.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        function()
    else:
        loop.call_soon_threadsafe(function)


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals that stop a stage; Slurm and SGE send SIGUSR1 before a job's time is over."""


_POLL_S = 0.2
"""Seconds until a thread that waits notices a signal that the system gave to another thread."""

StopCallback = Callable[[int], object]
_STOP_CALLBACKS: ContextVar[list[StopCallback]] = ContextVar("stop_callbacks")
"""Callbacks of `on_stop_signal` in a thread of `call_outside_loop`, the latest last."""


@contextmanager
def on_stop_signal(take: StopCallback) -> Iterator[None]:
    """Calls `take` for every stop signal until the block ends.

    Python handles signals in its main thread only. In a thread of `call_outside_loop`, an interrupt
    of the main thread has the effect of a signal; in other threads, nothing has.
    """
    if threading.current_thread() is not threading.main_thread():
        callbacks = _STOP_CALLBACKS.get([])
        callbacks.append(take)
        try:
            yield
        finally:
            callbacks.remove(take)
        return
    terminals = [stream for stream in (0, 1, 2) if os.isatty(stream)]

    def handle(signum: int, frame: object) -> None:
        for stream in terminals:
            if not os.isatty(stream):  # its terminal was closed: printing to it would fail
                nothing = os.open(os.devnull, os.O_RDWR)
                os.dup2(nothing, stream)
                os.close(nothing)
        take(signum)

    # `nohup` makes a process ignore SIGHUP.
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    handled = [signum for signum in STOP_SIGNALS if signum != signal.SIGHUP or not is_ignored]
    before = {signum: signal.signal(signum, handle) for signum in handled}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def call_outside_loop(function: Callable[[], Result]) -> Result:
    """Calls a function that uses `asyncio.run`; in a new thread if this one runs an event loop.

    A notebook runs one. A KeyboardInterrupt while this thread waits has the effect of Ctrl-C in a
    terminal: the first one is a stop signal, and later ones abort the function.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function()
    callbacks: list[StopCallback] = []
    future: Future[Result] = Future()
    is_waiting = threading.Event()

    def work() -> None:
        is_waiting.wait()
        _STOP_CALLBACKS.set(callbacks)
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    # A daemon, because an interrupt before `is_waiting` is set leaves it behind.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    interrupts = 0
    while True:
        try:
            is_waiting.set()
            while wait([future], _POLL_S).not_done:
                pass
            return future.result()
        except KeyboardInterrupt:
            if future.done():
                raise
            interrupts += 1
        if interrupts == 1 and callbacks:
            # In another thread, because a callback would use the event loop of this one.
            threading.Thread(target=callbacks[-1], args=(signal.SIGINT,)).start()
        else:
            _raise_in_thread(thread, KeyboardInterrupt)


def _raise_in_thread(thread: threading.Thread, error: type[BaseException]) -> None:
    """Raises an error in another thread when that next runs Python code."""
    thread_id = ctypes.c_ulong(thread.ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread_id, ctypes.py_object(error))
