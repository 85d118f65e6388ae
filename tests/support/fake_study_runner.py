"""A study runner that starts no stage: it records commands and returns totals from the test."""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from branchwise.cli.command_line import parser
from branchwise.runs.recipe_file import load_recipe
from branchwise.runs.stage import StageContext
from branchwise.runs.studies.study_runner import StudyRunner
from branchwise.runs.terminal import Terminal


@dataclass(frozen=True)
class Command:
    """A stage that a study requested."""

    stage: str
    run: str
    settings: Mapping[str, Any]
    arguments: tuple[str, ...]
    policy: str


def gives_nothing(_: object) -> dict[str, Any]:
    """Returns no results of a policy and no totals of a stage."""
    return {}


@dataclass(frozen=True)
class Pretended(StudyRunner):
    """Study runner that records its commands.

    Attributes:
        ran: Commands, in order.
        scored: Function that returns the results of a policy in an evaluation.
        told: Function that returns further totals of a stage.
    """

    ran: list[Command] = field(default_factory=list)
    scored: Callable[[str], dict[str, Any]] = gives_nothing
    told: Callable[[Command], dict[str, Any]] = gives_nothing

    def run_stage(self, stage: str, *arguments: str, **given: Any) -> dict[str, Any]:
        settings = given.get("settings") or {}
        run, policy = self.context.run.name, self.recipe.policy.model
        command = Command(stage, run, settings, arguments, policy)
        parser().parse_args([stage, *arguments])  # exits if the stage has no such option
        self.ran.append(command)
        policies = settings.get("evaluation.policies", {})
        rows = [{"policy": policy, **self.scored(policy)} for policy in policies]
        return {"set": "s", "policies": rows, **self.told(command)}

    def stages(self) -> list[str]:
        return [command.stage for command in self.ran]

    def asked(self, part: str) -> list[str]:
        """Returns the policies that were evaluated on a split, in order."""
        return [
            policy
            for command in self.ran
            if command.stage == "eval" and command.settings["evaluation.split"] == part
            for policy in command.settings["evaluation.policies"]
        ]


def pretended(name: str, run: Path, *settings: str, **more: Any) -> Pretended:
    """Returns a runner with the shipped recipe of a study."""
    recipe = load_recipe(Path("configs") / f"{name}.yaml", settings)
    console = Terminal(io.StringIO())
    return Pretended(StageContext(recipe, run, console=console), (0, 1), **more)
