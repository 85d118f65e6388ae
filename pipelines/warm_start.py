"""`make warm-start`: a supervised start on traces built from gold facts.

    branchwise warm-start --config configs/atlas.yaml --run datasets/atlas

An untrained small model follows the protocol too rarely for a search to find any reward. Traces
walk the protocol with real retrieval: a query worded one way or another, the evidence where the
passage was found, "None" and another query where it was not, and the gold answer at the end. Only
questions of the part `warm` are used; annotation, dev and test draw from other parts. Writes
`models/<run>/warm-start/`.
"""

import asyncio
from typing import Any

from agent.protocols import protocol_named
from pipelines.assemble import model_folder, open_index
from pipelines.config import Recipe
from pipelines.stage import Invocation, Outcome
from sources.load import load_data
from sources.settings import DataSettings
from training.traces import build_traces
from training.warm_start import warm_start as train


def warm_start(call: Invocation) -> Outcome:
    """Run the stage (see module)."""
    recipe, settings = call.recipe, call.recipe.training.warm_start
    drawn = warm_part(recipe, call.limit or settings.questions)
    data = load_data(drawn, recipe.seed)
    questions = [q for q in data.questions if q.answerable]
    target = model_folder(call.run, "warm-start")
    call.say(f"warm-start: {len(questions)} questions of the part `warm` → {target}")
    retriever = open_index(recipe, data.passages)
    traces = asyncio.run(
        build_traces(
            questions,
            {p.id: p for p in data.passages},
            protocol_named(recipe.agent.protocol),
            retriever,
            seed=recipe.seed,
            top_k=recipe.retrieval.top_k,
            max_steps=recipe.agent.max_steps,
        )
    )
    call.say(f"{len(traces.examples)} step examples; put aside: {dict(traces.counts)}")
    if call.dry_run:
        return Outcome({"examples": len(traces.examples), "dry_run": True})
    report = train(
        traces.examples,
        settings,
        target=target,
        seed=recipe.seed,
        resume=call.resume,
        data={**_made_with(recipe, drawn), "index_digest": retriever.digest},
        say=call.say,
    )
    call.say(f"wrote {target}: {report.summary()}")
    return Outcome({"model": str(target), "examples": len(traces.examples), **report.totals()})


def warm_part(recipe: Recipe, questions: int) -> DataSettings:
    """The recipe's data, drawn from the part `warm`; sets of a mix give the same number each."""
    each = -(-questions // max(len(recipe.data.mix), 1))
    mix = tuple(one.model_copy(update={"split": "warm", "limit": each}) for one in recipe.data.mix)
    return recipe.data.model_copy(update={"split": "warm", "limit": questions, "mix": mix})


def _made_with(recipe: Recipe, drawn: DataSettings) -> dict[str, Any]:
    """The settings that decide which traces are built, for `training.json`."""
    made = recipe.model_copy(update={"data": drawn})
    return made.model_dump(mode="json", include={"data", "retrieval", "agent"})
