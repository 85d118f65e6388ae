"""`make doctor`: what this machine has, and whether the recipe can run on it.

Reaches the recipe's endpoints and names what is wrong with them before anything is paid for.
"""

import asyncio
import shutil
from collections.abc import Iterator
from importlib.util import find_spec

from rich.table import Table
from rich.text import Text

from engines.settings import ModelSettings
from pipelines.config import Recipe
from pipelines.run import environment_facts
from pipelines.stage import BAD_INPUT, DONE, Invocation, Outcome
from storage.errors import BranchwiseError

NEEDS = {
    "cpu": ("openvino_genai", "transformers", "gguf"),
    "train": ("torch", "trl", "peft", "datasets"),
    "dense": ("sentence_transformers", "faiss"),
}


def doctor(call: Invocation) -> Outcome:
    """Run the stage (see module)."""
    facts = environment_facts()
    table = Table(title="this machine", title_justify="left", show_header=False, box=None)
    free = shutil.disk_usage(".").free / 2**30
    for name, value in {**facts, "free disk": f"{free:.0f} GiB"}.items():
        if name not in {"created", "command"}:
            table.add_row(Text(name, style="dim"), Text(_plain(value)))
    call.console.print(table)
    for extra, modules in NEEDS.items():
        missing = [module for module in modules if find_spec(module) is None]
        call.say(f"extra {extra}: {'missing ' + ', '.join(missing) if missing else 'installed'}")
    problems = list(problems_of(call.recipe))
    for problem in problems:
        call.say(f"problem: {problem}")
    call.say("the recipe can run here" if not problems else "mend these first")
    return Outcome({"problems": problems}, BAD_INPUT if problems else DONE)


def problems_of(recipe: Recipe) -> Iterator[str]:
    """What would stop this recipe here."""
    for role, model in (("policy", recipe.policy), ("judge", recipe.judge)):
        if model is None:
            continue
        try:
            asyncio.run(_check(model, recipe))
        except BranchwiseError as error:
            yield f"{role}: {error}"
    if recipe.retrieval.kind in {"dense", "fusion"}:
        for module in NEEDS["dense"]:
            if find_spec(module) is None:
                kind = recipe.retrieval.kind
                yield f"retrieval.kind {kind} needs {module}: pip install -e .[dense]"


async def _check(model: ModelSettings, recipe: Recipe) -> None:
    if model.engine == "openai":
        from engines.openai import OpenAIEngine

        timeout_s = min(recipe.limits.timeout_s, 30.0)
        async with OpenAIEngine(model, max_concurrency=1, timeout_s=timeout_s) as engine:
            await engine.check()
        return
    from engines.weights import policy_files

    policy_files(model.model)


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {part}" for key, part in value.items() if part)
    if isinstance(value, list):
        return " ".join(str(part) for part in value)
    return "–" if value is None else str(value)
