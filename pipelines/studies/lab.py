"""The lab: where a study runs its stages, each in a process of its own.

A stage that has finished is not run again, so an interrupted study goes on where it stopped; a
stage that was interrupted resumes by itself. A process a stage gives its memory back, and makes
every step a command that a person can repeat.
"""

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipelines.config import Recipe
from pipelines.run import dump_recipe
from pipelines.stage import Invocation
from pipelines.studies.journal import Event, Journal, command_key
from storage.atomic import atomic_write_text
from storage.errors import BranchwiseError

Totals = Mapping[str, Any]


class StageStopped(BranchwiseError):
    """A stage of a study ended early; `exit_code` is the stage's own."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Lab:
    """A study's run folder, recipe and journal.

    Attributes:
        call: of the study; its run folder holds trees, relabellings, evaluations and `study/`.
        seeds: of the trainings.
        kept_in: where journal and tables lie; null takes `study/` of the run folder.
    """

    call: Invocation
    seeds: tuple[int, ...]
    kept_in: Path | None = None

    @property
    def folder(self) -> Path:
        """Where the study keeps its journal and tables."""
        return self.kept_in or self.call.run / "study"

    @property
    def recipe(self) -> Recipe:
        return self.call.recipe

    @property
    def journal(self) -> Journal:
        return Journal(self.folder / "journal.jsonl")

    def branchwise(
        self,
        stage: str,
        *arguments: str,
        run: Path | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> Totals:
        """Run a stage to its end, or read what it gave when it last ended well.

        Args:
            stage: "annotate", "train-dpo", …
            arguments: what else the command takes.
            run: the run folder; null for the study's own.
            settings: `--set` overrides, by dotted name.

        Returns:
            The stage's totals, as `--json` prints them; empty in a dry run.

        Raises:
            StageStopped: it did not end with exit code 0.
        """
        words = (stage, "--run", str(run or self.call.run), *arguments, *overrides(settings or {}))
        key = command_key(words, self.recipe.digest())
        kept = self.journal.done(key)
        if kept is not None:
            return kept
        command = shlex.join(("branchwise", *words, "--config", str(self._recipe_file())))
        self.call.say(f"study: {command}")
        if self.call.dry_run:
            return {}
        self.journal.note(Event(key, command, "started"))
        began = time.monotonic()
        code, totals = self._run((*words, "--config", str(self._recipe_file()), "--json"))
        seconds = round(time.monotonic() - began, 1)
        ended: Literal["done", "failed"] = "done" if code == 0 else "failed"
        self.journal.note(
            Event(key, command, ended, seconds=seconds, exit_code=code, totals=totals)
        )
        if code:
            raise StageStopped(
                f"{command} ended with exit code {code}; the same study goes on from here", code
            )
        return totals

    def _recipe_file(self) -> Path:
        """The resolved recipe, under a name that tells it from those of earlier attempts."""
        path = self.folder / f"recipe-{self.recipe.digest()}.yaml"
        if not path.exists() and not self.call.dry_run:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_text(path, dump_recipe(self.recipe))
        return path

    def _run(self, words: Sequence[str]) -> tuple[int, Totals]:
        """Exit code and totals; what the stage says goes to the terminal as it comes."""
        process = subprocess.Popen(
            [sys.executable, "-m", "pipelines.cli", *words],
            stdout=subprocess.PIPE,
            text=True,
        )
        with _passing_signals_to(process):
            printed, _ = process.communicate()
        return process.returncode, _last_json(printed)


def overrides(settings: Mapping[str, object]) -> list[str]:
    """`--set` arguments; JSON is YAML too."""
    return [
        word
        for name, value in settings.items()
        for word in ("--set", f"{name}={json.dumps(value)}")
    ]


@contextmanager
def _passing_signals_to(process: subprocess.Popen[str]) -> Iterator[None]:
    """A stage drains on a first signal; the study waits for it, and ends with its exit code.

    Ctrl-C reaches the stage by itself (it is in the terminal's process group); SIGTERM does not.
    """

    def pass_on(signum: int, frame: object) -> None:
        if signum == signal.SIGTERM:
            process.send_signal(signum)

    before = {one: signal.signal(one, pass_on) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _last_json(printed: str) -> Totals:
    for line in reversed(printed.splitlines()):
        try:
            found: Any = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return {}
