"""Runs the stages of a study or a curriculum, each in its own process.

An interrupted study resumes at the stage that was stopped: the finished stages before it are not
repeated while their output is unchanged. All stages after it run again, because they may read what
it writes; each skips by itself what it has done (`train-rm` repeats its minutes). One process per
stage frees its memory, and makes every step a command that a user can repeat.
"""

import json
import os
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from branchwise.base import BranchwiseError, as_object, atomic_write_text

from ..folder import STUDY
from ..plugins import named_plugins
from ..recipe import Recipe
from ..recipe_file import load_recipe
from ..record import dump_recipe
from ..stage import (
    FAILED,
    INTERRUPTED,
    STOP_SIGNALS,
    StageContext,
    on_stop_signal,
)
from .journal import OUTPUT, Event, Journal, artifact_digest, command_key

StageTotals = Mapping[str, Any]

CHILD = "branchwise.cli.child"
"""Module that a stage's process runs."""

MEMORY_SETTINGS = (
    "training.dpo.micro_batch",
    "training.sft.micro_batch",
    "training.reward_model.batch_tokens",
)
"""Settings that may be changed within a study, because they change memory use.

The weights are the same up to rounding; with `training.dpo.sft_weight` nearly, because the chosen
steps' loss is a mean over the tokens of a micro-batch.
"""


class StageStopped(BranchwiseError):
    """Raised if a stage of a study ended early; `exit_code` and `totals` are the stage's own."""

    def __init__(self, message: str, exit_code: int, totals: StageTotals | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.totals = totals or {}


@dataclass(frozen=True)
class Study:
    """A recorded experiment; its module in `studies/` has it as `STUDY`.

    Attributes:
        recipe: Name of a recipe in `configs/` that it shares, with the run folder and its trees.
            Unset: it has its own, under its name.
        seeds: Default seeds, few enough for two cores; empty if the study uses none.
        trains: Whether it trains a policy, which an endpoint could not serve.
        of_existing_run: Whether it studies the trees of a run that must exist.
        arms: Names of the arms that may run alone, such as on another machine.
    """

    carry_out: "Callable[[StudyRunner], None]"
    recipe: str | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    trains: bool = True
    of_existing_run: bool = False
    arms: tuple[str, ...] = ()


@dataclass(frozen=True)
class StudyRunner:
    """A study's run folder, recipe and journal.

    Attributes:
        output_folder: Folder of journal and tables; defaults to `study/` of the run folder.
        changeable_settings: Settings that may change when the study resumes; finished stages stay
            valid.
        arms: Names of the wanted arms; empty: all.
        executed: Stages that this process ran; the ones before were finished.
    """

    context: StageContext
    seeds: tuple[int, ...]
    output_folder: Path | None = None
    title: str = "study"
    changeable_settings: tuple[str, ...] = MEMORY_SETTINGS
    arms: tuple[str, ...] = ()
    executed: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Folder of the study's journal and tables."""
        return self.output_folder or self.context.run / STUDY

    @property
    def recipe(self) -> Recipe:
        return self.context.recipe

    def wants(self, arm: str) -> bool:
        """Returns whether to run an arm."""
        return not self.arms or arm in self.arms

    @property
    def journal(self) -> Journal:
        return Journal(self.folder / "journal.jsonl")

    def run_stage(
        self, stage: str, *arguments: str, settings: Mapping[str, object] | None = None
    ) -> StageTotals:
        """Runs a stage to its end, or returns the totals of its last success.

        Args:
            stage: "annotate", "train-dpo", …
            settings: `--set` overrides, by dotted name.

        Returns:
            The stage's totals, as `--json` prints them, and a digest of its output; empty in a dry
            run.

        Raises:
            StageStopped: If the exit code is not 0, or a stop signal came.
        """
        words = (stage, "--run", str(self.context.run), *arguments, *overrides(settings or {}))
        key = command_key(words, self.deciding)
        if not self.executed and (finished := self._finished(key, stage)) is not None:
            return finished
        self.executed.append(stage)
        words = (*words, "--config", str(self._recipe_file()))
        words += tuple(f"--plugin={name}" for name in named_plugins())
        command = shlex.join(("branchwise", *words))
        self.context.log(f"{self.title}: {command}")
        if self.context.dry_run:
            return {}
        self.journal.note(Event(key, command, "started"))
        began, cpu_began = time.monotonic(), _children_cpu_seconds()
        code, printed, was_stopped = _run((*words, "--json"))
        output = None if code else artifact_digest(stage, self.context.run, printed)
        totals = {**printed, OUTPUT: output}
        self.journal.note(
            Event(
                key,
                command,
                "failed" if code else "done",
                seconds=round(time.monotonic() - began, 1),
                cpu_seconds=round(_children_cpu_seconds() - cpu_began, 1),
                exit_code=code,
                totals=totals,
            )
        )
        # Even if the stage had just finished when a signal came.
        if was_stopped or -code in STOP_SIGNALS:
            code, reason = INTERRUPTED, "was interrupted"
        elif code < 0:
            reason = f"was ended by signal {-code} (9 usually means out of memory)"
            code = FAILED
        else:
            reason = f"ended with exit code {code}"
        if code:
            reason = f"{command} {reason}; rerun the same command to resume"
            raise StageStopped(reason, code, printed)
        return totals

    @property
    def deciding(self) -> str:
        """Digest of the recipe without settings that may be raised after a stop."""
        blocks = set(Recipe.model_fields) - {"limits", "curriculum"}
        return self.recipe.digest(*blocks, without=self.changeable_settings)

    def _finished(self, key: str, stage: str) -> StageTotals | None:
        """Returns the totals of a finished stage whose output is intact; else None."""
        totals = self.journal.done(key)
        if totals is None:
            return None
        output = artifact_digest(stage, self.context.run, totals)
        if output is not None and output == totals.get(OUTPUT):
            return totals
        self.context.log(f"{self.title}: output of {stage} is missing or has changed; rerunning it")
        return None

    def recipe_with(self, settings: Mapping[str, object]) -> Recipe:
        """Returns the study's recipe as a stage with these settings reads it."""
        return load_recipe(self._recipe_file(), overrides(settings)[1::2])

    def _recipe_file(self) -> Path:
        """Writes the resolved recipe to a file whose name contains its digest; returns the path."""
        path, recipe = self.folder / f"recipe-{self.recipe.digest()}.yaml", dump_recipe(self.recipe)
        if not self.context.dry_run:
            atomic_write_text(path, recipe)
        return path


def _children_cpu_seconds() -> float:
    """Returns the CPU time of all ended child processes, and of theirs."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def with_sibling_run(runner: StudyRunner, name: str) -> StudyRunner:
    """Returns a runner with its own run folder and the same journal."""
    run = runner.context.run.with_name(f"{runner.context.run.name}-{name}")
    return replace(runner, context=replace(runner.context, run=run), output_folder=runner.folder)


def overrides(settings: Mapping[str, object]) -> list[str]:
    """Returns `--set` arguments; values are JSON, which is also YAML."""
    values = (f"{name}={json.dumps(value)}" for name, value in settings.items())
    return [word for value in values for word in ("--set", value)]


def _run(words: Sequence[str]) -> tuple[int, StageTotals, bool]:
    """Runs a stage; its messages go straight to the terminal.

    The first stop signal drains the stage, the second aborts it.

    Returns:
        Exit code (if negative, the signal that ended the process), the totals of its JSON line, and
        whether a stop signal came.
    """
    signals: list[int] = []
    process: subprocess.Popen[str] | None = None

    def take(signum: int) -> None:
        signals.append(signum)
        if process is not None:
            process.send_signal(signum)

    with on_stop_signal(take):
        # Its own process group, so that Ctrl-C reaches it once, through the study.
        started = subprocess.Popen(
            # -P: a file in the current folder must not hide a package.
            [sys.executable, "-P", "-m", CHILD, str(os.getpid()), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        for signum in signals:  # before there was a process to pass them to
            started.send_signal(signum)
        process = started
        printed, _ = process.communicate()
    return process.returncode, _last_json(printed), bool(signals)


def _last_json(printed: str) -> StageTotals:
    for line in reversed(printed.splitlines()):
        with suppress(ValueError):  # another message
            return as_object(json.loads(line))
    return {}
