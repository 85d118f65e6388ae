"""Questions grown in this process: the annotator that a recipe describes, and its engines."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Protocol

from annotation.annotator import Annotated, Annotator, in_flight
from annotation.evaluators import Evaluator, JudgeEvaluator, RolloutEvaluator
from annotation.judge import Judge
from annotation.rows import Provenance
from engines.ledgered import BeforeCall
from engines.sampling import Engine
from pipelines.assemble import Say, environment_for, opened, sampling_for
from pipelines.config import Recipe
from pipelines.progress import Progress
from retrieval.interface import Retriever
from storage.ledger import Ledger
from storage.records import Question

LABELLING = ("spre", "pairs")
"""Blocks of the recipe that decide labels and pairs."""


class Admission(Protocol):
    """Who lets calls and questions through: `pipelines.stage.Gate`, or a worker's parent."""

    def check(self) -> None: ...
    def admit(self, questions: Iterable[Question]) -> Iterator[Question]: ...


async def grown_here(
    recipe: Recipe,
    owed: Iterable[Question],
    retriever: Retriever,
    ledger: Ledger,
    gate: Admission,
    progress: Progress,
    say: Say,
) -> AsyncGenerator[Annotated, None]:
    """Annotate what is owed, as far as the gate lets it through; questions as they finish.

    `say` is told of trouble with an endpoint.
    """

    async def work(question: Question) -> Annotated:
        progress.in_flight += 1
        try:
            return await annotator.annotate(question)
        finally:
            progress.in_flight -= 1

    async with opened_annotator(recipe, retriever, ledger, gate.check, say) as annotator:
        at_once = recipe.questions_in_flight
        # Closed here: whoever stops listening must end the work before engines and ledger close.
        async with aclosing(in_flight(gate.admit(owed), work, at_once)) as finished:
            async for annotated in finished:
                yield annotated


@asynccontextmanager
async def opened_annotator(
    recipe: Recipe, retriever: Retriever, ledger: Ledger, before_call: BeforeCall, say: Say
) -> AsyncIterator[Annotator]:
    """The recipe's annotator with its engines open, each behind the ledger."""
    async with AsyncExitStack() as stack:
        policy = await stack.enter_async_context(
            opened(recipe.policy, recipe, ledger, before_call, say)
        )
        judge = None
        if recipe.asked_judge is not None:
            judge = await stack.enter_async_context(
                opened(recipe.asked_judge, recipe, ledger, before_call, say)
            )
        yield annotator_for(recipe, policy, judge, retriever)


def annotator_for(
    recipe: Recipe, policy: Engine, judge: Engine | None, retriever: Retriever
) -> Annotator:
    """The annotator that the recipe describes; `judge` is there if its search asks one."""
    environment = environment_for(recipe, policy, retriever)
    evaluator: Evaluator
    if judge is not None and recipe.asked_judge is not None:
        evaluator = JudgeEvaluator(Judge(judge, recipe.asked_judge, recipe.seed), recipe.spre)
    else:
        drawn = sampling_for(recipe.policy, recipe.spre.temperature)
        evaluator = RolloutEvaluator(environment, drawn, recipe.spre)
    return Annotator(
        environment=environment,
        evaluator=evaluator,
        search=recipe.mcts,
        spre=recipe.spre,
        estimator=recipe.estimator,
        pairs=recipe.pairs,
        sampling=sampling_for(recipe.policy, recipe.mcts.temperature),
        provenance=Provenance(
            seed=recipe.seed,
            cycle=0,
            policy_model=policy.model,
            policy_digest=policy.digest,
            judge_model=recipe.asked_judge.model if recipe.asked_judge else None,
            prompt_hash=environment.protocol.prompt_hash,
            label_digest=recipe.digest(*LABELLING),
            config_digest=recipe.decisive_digest,
        ),
    )
