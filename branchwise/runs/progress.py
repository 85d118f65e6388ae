"""Progress of a stage: a live display on a terminal, otherwise plain lines; and its work."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from branchwise.base import (
    BranchwiseError,
    EndpointError,
    RetrievalError,
    format_duration,
    map_concurrently,
)
from branchwise.engines import Engine, LedgeredEngine
from branchwise.storage import Totals

from .terminal import Terminal

Item = TypeVar("Item")
Result = TypeVar("Result")

PLAIN_EVERY_S = 30.0
LIVE_EVERY_S = 0.5


@dataclass
class Progress:
    """Counters of one stage.

    Attributes:
        grows: Whether questions give pairs and rewards, which are then shown.
        reward_sum, rewarded: Sum and number of the labels of nodes.
        spent: Callback that returns the run's totals; only this attempt's spending is shown.
        partial: Finished share of each question in flight, in [0, 1].
        servers: Callbacks that return the state of each server of a fleet, by address.
    """

    stage: str
    total: int
    grows: bool = False
    spent: Callable[[], Totals] = Totals
    done: int = 0
    failed: int = 0
    in_flight: int = 0
    pairs: int = 0
    reward_sum: float = 0.0
    rewarded: int = 0
    started: float = field(default_factory=time.monotonic)
    resumed_from: int = 0
    partial: dict[str, float] = field(default_factory=dict)
    servers: list[Callable[[], dict[str, str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._before = self.spent()

    @property
    def made(self) -> Totals:
        """Totals of this attempt's calls; replayed calls cost nothing and do not count."""
        return self.spent() - self._before

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def finished(self) -> float:
        """Finished questions, with the finished parts of those in flight."""
        return min(self.done + sum(self.partial.values()), self.total)

    @property
    def left_s(self) -> float | None:
        """Seconds left at the rate of this attempt; None before its first iteration."""
        fresh = self.finished - self.resumed_from
        return self.seconds / fresh * (self.total - self.finished) if fresh > 0 else None

    def facts(self) -> dict[str, str]:
        """Returns the facts that both displays show, in order."""
        made = self.made
        rate = made.calls / self.seconds if self.seconds > 0 else 0.0
        facts = {
            "questions": f"{self.done}/{self.total}",
            "in flight": str(self.in_flight),
            "failed": str(self.failed),
            "calls/s": f"{rate:.1f}",
            "tokens in/cached/out": (
                f"{made.input_tokens:,}/{made.cached_tokens:,}/{made.output_tokens:,}"
            ),
        }
        if made.cost_usd:
            facts["USD"] = f"{made.cost_usd:,.4f}"
        if self.grows:
            facts["pairs"] = str(self.pairs)
            mean = f"{self.reward_sum / self.rewarded:.3f}" if self.rewarded else "–"
            facts["mean reward"] = mean
        return facts | {"time left": format_duration(self.left_s)}

    def watch(self, engine: Engine) -> None:
        """Shows the servers of an engine, if it is a fleet."""
        if isinstance(engine, LedgeredEngine):
            self.servers.append(engine.describe_servers)

    def server_facts(self) -> dict[str, str]:
        """Returns the state of each server of the stage's fleets, by address."""
        return {name: state for describe in self.servers for name, state in describe().items()}

    def lines(self) -> str:
        """Returns the plain line, and one for each server."""
        facts = " · ".join(f"{name} {value}" for name, value in self.facts().items())
        share = self.finished / self.total if self.total else 1.0
        servers = (f"\n  {name}: {state}" for name, state in self.server_facts().items())
        return f"{self.stage}: {share:.0%} · {facts}{''.join(servers)}"

    def table(self) -> Table:
        """Returns the live display."""
        table = Table(title=self.stage, title_justify="left", show_header=False, box=None)
        table.add_row("", ProgressBar(self.total, self.finished, width=40))
        for name, value in (self.facts() | self.server_facts()).items():
            table.add_row(Text(name, style="dim"), Text(value))
        return table

    @asynccontextmanager
    async def shown(self, console: Terminal) -> AsyncIterator[None]:
        """Shows the progress until the block ends."""
        ticking = asyncio.create_task(
            self._live(console) if console.is_terminal else self._plain(console)
        )
        try:
            yield
        finally:
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
            console.print_line(self.lines())

    async def _live(self, console: Terminal) -> None:
        with Live(self.table(), console=console, transient=True, auto_refresh=False) as live:
            while True:
                live.update(self.table(), refresh=True)
                await asyncio.sleep(LIVE_EVERY_S)

    async def _plain(self, console: Terminal) -> None:
        while True:
            await asyncio.sleep(PLAIN_EVERY_S)
            console.print_line(self.lines())


async def attempt_each(
    items: Iterable[Item],
    work: Callable[[Item], Coroutine[Any, Any, Result]],
    at_once: int,
    progress: Progress,
) -> AsyncGenerator[tuple[Item, Result | BranchwiseError], None]:
    """Yields every item with the result of its work, or with the fault that it alone met.

    Raises:
        EndpointError: If a fault is fatal.
    """

    async def attempt(item: Item) -> tuple[Item, Result | BranchwiseError]:
        result: Result | BranchwiseError
        progress.in_flight += 1
        try:
            result = await work(item)
        except (EndpointError, RetrievalError) as error:
            if isinstance(error, EndpointError) and error.fatal:
                raise
            progress.failed += 1
            result = error
        finally:
            progress.in_flight -= 1
        progress.done += 1
        return item, result

    async with aclosing(map_concurrently(items, attempt, at_once)) as finished:
        async for attempted in finished:
            yield attempted
