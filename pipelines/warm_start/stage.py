"""`make warm-start`: a supervised start on traces built from gold facts.

    branchwise warm-start --config configs/atlas.yaml --run datasets/atlas

An untrained small model follows the protocol too rarely for a search to find any reward. Traces
follow the protocol with real retrieval: queries in several wordings, the evidence if the passage
was found, otherwise "None" and another query, and the gold answer at the end. Traces of evo-rag
also search too much, take searches back and refuse: habits for later training to remove. The
setting `training.warm_start.reading` adds examples of reading a passage among others. Uses
questions of split `warm` only; other stages use other splits. Writes `models/<run>/warm-start/`, or
a sibling folder with `--name`.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping

from branchwise.agent import AgentProtocol, protocol_of
from branchwise.base import ConfigError
from branchwise.retrieval import Bm25Settings, open_retriever
from branchwise.runs import (
    WARM_START,
    ModelName,
    Recipe,
    StageContext,
    StageResult,
    require,
    retrieval_identity,
    start_files,
    trained_folder,
    training_estimate,
    training_run,
)
from branchwise.sources import DataSettings, SetSettings, load_data, unanswerable
from branchwise.training import (
    NO_QUERY_FINDS_IT,
    NOT_GIVEN,
    NOT_IN_CORPUS,
    TOO_LONG,
    WALKS,
    StepExample,
    build_reading,
    build_traces,
    train_on_steps,
)
from branchwise.types import EventKind

MOST_SKIPPED = 0.5
"""Share of skipped questions above which the stage stops: too few would be left to learn from."""

REMEDIES: Mapping[str, str] = {
    NOT_GIVEN: "add supporting_titles or supporting_ids to the questions (docs/your-data.md)",
    NOT_IN_CORPUS: "make these titles or ids those of the corpus; `make data` lists examples",
    NO_QUERY_FINDS_IT: "raise retrieval.top_k, or choose another retrieval.kind",
    TOO_LONG: "raise agent.max_steps",
}


def warm_start(context: StageContext, name: ModelName = WARM_START) -> StageResult:
    """Runs the stage (see module)."""
    recipe, settings = context.recipe, context.recipe.training.warm_start
    data_settings = warm_part(recipe, context.limit or settings.questions)
    protocol = protocol_of(recipe.agent)
    if protocol.name not in WALKS:
        raise ConfigError(
            f"agent.protocol: a warm start cannot write traces of `{protocol.name}`. Choose one of "
            f"{', '.join(WALKS)}"
        )
    require(start_files("training.warm_start.base", recipe.policy, settings.base))
    data = load_data(data_settings, recipe.seed)
    questions = [question for question in data.questions if protocol.unfit(question) is None]
    unfit = filter(None, map(protocol.unfit, data.questions))
    target = trained_folder(context, WARM_START, name)
    context.log(f"warm-start: {len(questions)} questions of the split `warm` → {target}")
    for line in data.describe_notes({EventKind.WARNING}):
        context.log(f"data: {line}")
    retriever = open_retriever(recipe.retrieval, list(data.passages), log=context.log)
    traces = asyncio.run(
        build_traces(
            questions,
            {p.id: p for p in data.passages},
            protocol,
            retriever,
            seed=recipe.seed,
            top_k=recipe.retrieval.top_k,
            answer_only=settings.answer_only,
            incomplete=data.incomplete,
        )
    )
    left_out = Counter(f"left out, {reason}" for reason in unfit)
    counts = dict(sorted((traces.all_counts + left_out).items()))
    context.log(f"{len(traces.examples)} step examples: {_in_words(counts)}")
    _check_few_skipped(traces.skipped, len(questions))
    if not traces.examples:
        raise ConfigError("warm-start: no question gives a trace. Change data or agent")
    examples = [*traces.examples, *_reading_examples(context, protocol, counts)]
    totals = {"examples": len(examples), "counts": counts}
    if context.dry_run:
        estimate = training_estimate(context, "warm-start", len(examples))
        return StageResult({**totals, **estimate, "dry_run": True})
    blocks = recipe.model_copy(update={"data": data_settings}).model_dump(
        mode="json", include={"data", "agent"}, exclude={"data": {"skip"}}
    )
    data_origin = {
        **blocks,
        "retrieval": retrieval_identity(recipe.retrieval),
        "index_digest": retriever.digest,
    }
    training = training_run(context, "warm-start", settings.base, target, data_origin)
    report = train_on_steps(training, examples, stops=protocol.stops)
    context.log(f"wrote {target}: {report.summary()}")
    return StageResult({"model": str(target), **totals, **report.totals()})


def _reading_examples(
    context: StageContext, protocol: AgentProtocol, counts: dict[str, int]
) -> list[StepExample]:
    """Returns the examples of `training.warm_start.reading`; adds to the counts."""
    recipe, reading = context.recipe, context.recipe.training.warm_start.reading
    if reading is None:
        return []
    limit = context.limit or reading.questions
    data_settings = DataSettings(mix=tuple(map(_from_warm, reading.sets)), limit=limit)
    data = load_data(data_settings, recipe.seed, unfit=unanswerable)
    built = asyncio.run(
        build_reading(
            data.questions,
            {p.id: p for p in data.passages},
            protocol,
            open_retriever(Bm25Settings(), data.passages, log=context.log),
            seed=recipe.seed,
            top_k=recipe.retrieval.top_k,
            reading=reading,
            answer_only=recipe.training.warm_start.answer_only,
        )
    )
    counts.update({name: counts.get(name, 0) + n for name, n in built.all_counts.items()})
    context.log(f"{len(built.examples)} reading examples: {_in_words(built.all_counts)}")
    _check_few_skipped(built.skipped, len(data.questions))
    return built.examples


def _check_few_skipped(reasons: Counter[str], questions: int) -> None:
    """Checks that most questions give a trace.

    Raises:
        ConfigError: If more than `MOST_SKIPPED` do not; lists the reasons and their remedies.
    """
    skipped = reasons.total()
    if skipped <= MOST_SKIPPED * questions:
        return
    listed = (
        f"{count} × {reason}" + (f": {REMEDIES[reason]}" if reason in REMEDIES else "")
        for reason, count in reasons.most_common()
    )
    raise ConfigError(
        f"warm-start: {skipped} of {questions} questions give no trace, more than half. Change "
        "data, retrieval or agent:\n" + "\n".join(listed)
    )


def _in_words(counts: Mapping[str, int]) -> str:
    """Describes the traces: counts, and the mean number of searches if known."""
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    if not counts.get("searches"):
        return listed
    return f"{listed}; {counts['searches'] / counts['traces']:.2f} searches per trace"


def warm_part(recipe: Recipe, questions: int) -> DataSettings:
    """Returns the recipe's data, drawn from the split `warm`, and the sets to trace with it; sets
    of a mix give the same number each.

    Raises:
        ConfigError: If there are further sets, but `data` is no mix.
    """
    further = recipe.training.warm_start.sets
    if further and not recipe.data.mix:
        raise ConfigError("training.warm_start.sets: name the set of `data` in data.mix, too")
    sets = (*recipe.data.mix, *further)
    each = -(-questions // max(len(sets), 1))
    mix = tuple(part.model_copy(update={"limit": each}) for part in map(_from_warm, sets))
    update = {"split": "warm", "limit": questions, "skip": 0, "mix": mix}
    return recipe.data.model_copy(update=update)


def _from_warm(part: SetSettings) -> SetSettings:
    """Returns a set of a mix, drawn from the split `warm` unless it is used whole."""
    return part.model_copy(update={"split": part.split and "warm"})
