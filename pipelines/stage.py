"""What every stage is given and what it gives back."""

import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from pipelines.config import LimitSettings, Recipe
from storage.calls import Totals
from storage.errors import ConfigError
from storage.records import Question

DONE, FAILED, BAD_INPUT, LIMIT_REACHED, TOO_MANY_FAILURES = 0, 1, 2, 3, 4
INTERRUPTED = 130


def checked_name(name: str) -> str:
    """`name`, if it can be the name of a folder.

    Raises:
        ConfigError: it cannot.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}", name):
        raise ConfigError(f"{name!r} names a folder: use letters, digits, `.`, `_` and `-`")
    return name


@dataclass(frozen=True)
class Invocation:
    """One call of a stage: `branchwise <stage> --config … --run … …`.

    Attributes:
        recipe: the resolved recipe.
        run: the run folder, `datasets/<name>`.
        resume: never replace another training's checkpoints (every stage continues its own).
        dry_run: say what would happen and stop.
        limit: at most this many questions; overrides the recipe.
        console: where a person reads.
        options: what only this stage takes.
    """

    recipe: Recipe
    run: Path
    resume: bool = False
    dry_run: bool = False
    limit: int | None = None
    console: Console = field(default_factory=Console)
    options: dict[str, Any] = field(default_factory=dict)

    def say(self, text: str) -> None:
        """Print one line as it is."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Outcome:
    """How a stage ended: its totals (the `--json` line) and its exit code."""

    totals: dict[str, Any]
    exit_code: int = DONE


@dataclass
class Gate:
    """Lets questions through until a limit is reached or somebody asks to stop.

    What is in flight then finishes and is committed; the run can be resumed.

    Attributes:
        limits: tokens and dollars are those of the whole run, earlier attempts and stages
            included; hours are this attempt's.
        spent: what the run's ledger holds so far.
    """

    limits: LimitSettings
    spent: Callable[[], Totals] = Totals
    started: float = field(default_factory=time.monotonic)
    reason: str | None = None
    interrupted: bool = False

    def closed(self) -> bool:
        """Whether no further question may start; `reason` then says why."""
        limits, spent = self.limits, self.spent()
        tokens = spent.input_tokens + spent.output_tokens
        hours = (time.monotonic() - self.started) / 3600
        if self.interrupted:
            self.reason = "interrupted"
        elif limits.max_tokens is not None and tokens >= limits.max_tokens:
            self.reason = f"limits.max_tokens {limits.max_tokens:,} reached"
        elif limits.max_usd is not None and spent.cost_usd >= limits.max_usd:
            self.reason = f"limits.max_usd {limits.max_usd} reached"
        elif limits.max_hours is not None and hours >= limits.max_hours:
            self.reason = f"limits.max_hours {limits.max_hours} reached"
        return self.reason is not None

    def admit(self, questions: Iterable[Question]) -> Iterator[Question]:
        """The questions, until the gate closes."""
        for question in questions:
            if self.closed():
                return
            yield question

    @contextmanager
    def listening(self) -> Iterator[None]:
        """First Ctrl-C or SIGTERM closes the gate; a second one aborts (exit code 130)."""

        def close(signum: int, frame: object) -> None:
            if self.interrupted:
                raise KeyboardInterrupt
            self.interrupted = True

        before = {one: signal.signal(one, close) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return INTERRUPTED
        return LIMIT_REACHED if self.reason else DONE
