"""A lab that starts nothing: it notes commands and gives what a test wants them to have given."""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from pipelines.config import load_recipe
from pipelines.stage import Invocation
from pipelines.studies.lab import Lab


@dataclass(frozen=True)
class Command:
    """A stage as a study asked for it."""

    stage: str
    run: str
    settings: Mapping[str, Any]
    arguments: tuple[str, ...]
    after: Mapping[str, Any]


def gives_nothing(policy: str) -> dict[str, Any]:
    """Totals of an evaluation that nobody looks into."""
    return {}


@dataclass(frozen=True)
class Pretended(Lab):
    """`ran` holds the commands in their order; `scored` says how a policy did."""

    ran: list[Command] = field(default_factory=list)
    scored: Callable[[str], dict[str, Any]] = gives_nothing

    def branchwise(self, stage: str, *arguments: str, **given: Any) -> dict[str, Any]:
        settings, after = given.get("settings") or {}, given.get("after") or {}
        self.ran.append(Command(stage, self.call.run.name, settings, arguments, after))
        policies = settings.get("evaluation.policies", {})
        rows = [{"policy": policy, **self.scored(policy)} for policy in policies]
        return {"set": "s", "policies": rows, "product": f"{stage} {' '.join(arguments)}"}

    def stages(self) -> list[str]:
        return [command.stage for command in self.ran]

    def asked(self, part: str) -> list[str]:
        """Policies by the part that they were asked, in order."""
        return [
            policy
            for command in self.ran
            if command.stage == "eval" and command.settings["evaluation.part"] == part
            for policy in command.settings["evaluation.policies"]
        ]


def pretended(name: str, run: Path, *settings: str, **more: Any) -> Pretended:
    """A lab with a study's own recipe."""
    recipe = load_recipe(Path("configs") / f"{name}.yaml", settings)
    console = Console(file=io.StringIO(), width=200)
    return Pretended(Invocation(recipe, run, console=console), (0, 1), **more)
