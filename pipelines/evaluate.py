"""`make eval`: policies on a question set, and one table of what they do.

    branchwise eval --config configs/atlas.yaml --run datasets/atlas

Every policy of `evaluation.policies` answers the same questions of the part `test`, greedily and
under the same structured decoding. Predictions and metrics lie in `eval/<policy>/<set>/` of the
run folder; calls are in a ledger, so an interrupted evaluation continues.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from evaluation.comparison import EVERYTHING, compare
from evaluation.run import Evaluated
from evaluation.run import evaluate as answer_all
from evaluation.tables import render_markdown, render_table
from pipelines.assemble import environment_for, open_data, open_index, opened, sampling_for
from pipelines.config import Recipe
from pipelines.progress import Progress
from pipelines.run import Run, open_run
from pipelines.stage import Gate, Invocation, Outcome
from retrieval.interface import Retriever
from sources.load import Data
from sources.parts import folded_question
from storage.atomic import atomic_write_json, atomic_write_text
from storage.errors import ConfigError
from storage.ledger import Ledger
from storage.manifest import add_parts
from storage.parts import read_parts, write_part
from storage.records import Failure, Prediction, Question
from storage.schemas import rows_to_table, schema_of, table_to_records


def evaluate(call: Invocation) -> Outcome:
    """Run the stage (see module)."""
    recipe = call.recipe
    policies = policies_of(recipe, call.run)
    data = evaluation_data(recipe, call.limit)
    call.say(
        f"eval: {len(data.questions)} questions of {set_name(recipe)}, "
        f"policies {', '.join(f'{name} ({model})' for name, model in policies.items())}"
    )
    if call.dry_run:
        return Outcome({"questions": len(data.questions), "dry_run": True})
    refuse_overlap(call.run, data.questions)
    retriever = open_index(recipe, data.passages)
    run = evaluated_run(call, retriever)
    predictions: dict[str, list[Prediction]] = {}
    with Ledger(run.ledger) as ledger:
        exam = Exam(call, run, data, retriever, ledger, Gate(recipe.limits, ledger.totals))
        for name, model in policies.items():
            answered = exam.take(name, model)
            if answered.unasked:
                call.say(f"stopped: {exam.gate.reason}; run the same command again to continue")
                return Outcome({"policies": list(predictions)}, exam.gate.exit_code)
            _write(run, f"eval/{name}/{set_name(recipe)}", answered)
            predictions[name] = answered.predictions
    return _report(call, run, predictions, recipe.seed)


def evaluated_run(call: Invocation, retriever: Retriever) -> Run:
    """The run folder, made if it is not there; an evaluation may ask other questions of it."""
    if (call.run / "config.yaml").exists():
        return Run(call.run, call.recipe)
    return open_run(call.run, call.recipe, {"index_digest": retriever.digest})


def refuse_overlap(run: Path, asked: Sequence[Question]) -> None:
    """Questions that the run was annotated with, and so trained on, are no test.

    Raises:
        ConfigError: some are asked again, by id or by text.
    """
    if not run.is_dir():
        return
    grown = table_to_records(read_parts(run, "questions"), Question)
    ids = {(q.source, q.id) for q in grown}
    texts = {folded_question(q.question) for q in grown}
    seen = [q for q in asked if (q.source, q.id) in ids or folded_question(q.question) in texts]
    if seen:
        raise ConfigError(
            f"{len(seen)} of {len(asked)} evaluation questions are questions that {run} was "
            f"annotated with, such as {seen[0].question!r}: draw data.split and the evaluation's "
            "set from different parts"
        )


def policies_of(recipe: Recipe, run: Path) -> dict[str, str]:
    """Policies by name; `{run}` stands for the run's name.

    Raises:
        ConfigError: none is named, or folders are missing.
    """
    named = recipe.evaluation.policies or {"policy": recipe.policy.model}
    found = {name: model.replace("{run}", run.name) for name, model in named.items()}
    missing = [
        f"evaluation.policies.{name}: {model} does not exist; train it first, or leave it out"
        for name, model in found.items()
        if recipe.policy.engine == "openvino" and model != "packaged" and not Path(model).exists()
    ]
    if missing:
        raise ConfigError("\n".join(missing))
    return found


def evaluation_data(recipe: Recipe, limit: int | None = None) -> Data:
    """The evaluation's questions, over the run's corpus."""
    wanted = recipe.evaluation.set
    limit = limit or recipe.evaluation.limit
    if wanted is None:
        update = {"split": "test", "limit": limit}
        update["mix"] = tuple(
            one.model_copy(update={"split": "test", "limit": limit}) for one in recipe.data.mix
        )
    else:
        update = {**wanted.model_dump(), "limit": wanted.limit or limit, "mix": ()}
    return open_data(recipe, recipe.data.model_copy(update=update))


def set_name(recipe: Recipe) -> str:
    """Name of the evaluated set in paths and tables."""
    wanted = recipe.evaluation.set
    source = wanted.source if wanted else recipe.data.source
    split = wanted.split if wanted else "test"
    return f"{source}-{split or 'all'}"


@dataclass(frozen=True)
class Exam:
    """What every policy is given: the same questions, corpus, ledger and limits."""

    call: Invocation
    run: Run
    data: Data
    retriever: Retriever
    ledger: Ledger
    gate: Gate

    def take(self, name: str, model: str) -> Evaluated:
        """All answers of one policy, as far as the gate lets the questions through."""
        with self.gate.listening():
            answered = asyncio.run(self._answered(name, model))
        if answered.skipped:
            self.call.say(f"{name}: {answered.skipped} unanswerable questions skipped (no refusal)")
        return answered

    async def _answered(self, name: str, model: str) -> Evaluated:
        recipe = self.run.recipe
        settings = recipe.policy.model_copy(update={"model": model})
        progress = Progress(f"eval {name}", len(self.data.questions))

        def start() -> None:
            progress.in_flight += 1

        def done(row: Prediction | Failure) -> None:
            progress.in_flight -= 1
            progress.done += 1
            progress.failed += isinstance(row, Failure)

        async with (
            opened(settings, recipe, self.ledger, progress.call) as engine,
            progress.shown(self.call.console),
        ):
            return await answer_all(
                self.data.questions,
                environment_for(recipe, engine, self.retriever),
                policy=name,
                sampling=sampling_for(settings, recipe.evaluation.temperature),
                max_in_flight=recipe.limits.max_questions_in_flight,
                admit=lambda: not self.gate.closed(),
                on_start=start,
                on_done=done,
            )


def _write(run: Run, table: str, answered: Evaluated) -> None:
    """Predictions as a part of the run, failures beside them."""
    name = f"{table}/predictions"
    rows = rows_to_table(answered.predictions, schema_of(name), run.id)
    add_parts(run.folder, [write_part(run.folder, name, rows)])
    if answered.failures:
        failures = [failure.model_dump() for failure in answered.failures]
        atomic_write_json(run.folder / table / "failures.json", failures)


def _report(
    call: Invocation, run: Run, predictions: dict[str, list[Prediction]], seed: int
) -> Outcome:
    """Print the table, and keep it in the run folder."""
    comparison = compare(predictions, resamples=run.recipe.evaluation.bootstrap, seed=seed)
    call.console.print(render_table(comparison))
    name = set_name(run.recipe)
    for row in comparison.rows:
        if row.stratum == EVERYTHING:
            folder = run.folder / "eval" / row.policy / name
            atomic_write_json(folder / "metrics.json", asdict(row))
    atomic_write_text(run.folder / "eval" / f"{name}.md", render_markdown(comparison))
    call.say(f"kept in {run.folder / 'eval'}")
    rows = [asdict(row) for row in comparison.rows if row.stratum == EVERYTHING]
    return Outcome({"set": name, "policies": rows})
