"""Traces: ideal trajectories, replayed through the protocol with real retrieval.

Each trace draws one wording of every query and every piece of evidence, so the policy learns
several wordings, and its samples still differ. The protocol decides the way to the answer
(`WALKS`): the shortest one, or one with inefficiencies for training to remove.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from branchwise.agent import AgentProtocol, root_of
from branchwise.retrieval import Retriever
from branchwise.types import Passage, Question, QuestionKey, RetrievedPassage

from ..examples import StepExample
from .hops import hops_of, queries_about
from .trace_builder import WALKS, WASTEFUL, Habits, Walk

NOT_IN_CORPUS = "supporting passages are not in the corpus"
NOT_GIVEN = "supporting passages are not given"


@dataclass(frozen=True, slots=True)
class Traces:
    """Step examples of all traces, in order of the questions.

    `counts` has the number of traces, by content, and `skipped` that of skipped questions, by
    reason.
    """

    examples: list[StepExample] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def all_counts(self) -> Counter[str]:
        """Both counts, with the names that `--json` prints."""
        skipped = {f"skipped: {reason}": n for reason, n in self.skipped.items()}
        return Counter({**self.counts, **skipped})


async def build_traces(
    questions: Iterable[Question],
    passages: Mapping[str, Passage],
    protocol: AgentProtocol,
    retriever: Retriever,
    seed: int,
    top_k: int,
    habits: Habits = WASTEFUL,
    answer_only: bool = False,
    incomplete: Collection[QuestionKey] = (),
) -> Traces:
    """Builds step examples from gold facts.

    Args:
        questions: Questions of split `warm` only (not checked here); with gold answers, or
            unanswerable if the protocol can refuse.
        passages: Corpus by id.
        seed: Random seed; a question's trace depends on nothing else.
        top_k: Number of passages per query, as in the recipe.
        habits: Deviations from the shortest way.
        answer_only: Whether ARENA's traces have the answer section only.
        incomplete: Questions that cite passages which the corpus lacks. They are skipped, because
            the answer would be a guess.

    Raises:
        RetrievalError: If a search failed.
    """
    traces = Traces()
    titles = frozenset(passage.title for passage in passages.values())
    for question in questions:
        if (question.source, question.id) in incomplete:
            traces.skipped[NOT_IN_CORPUS] += 1
            continue
        query = protocol.first_query(question)
        walk = Walk(
            question=question,
            hops=hops_of(question, passages),
            wordings=() if question.answerable else queries_about(question, titles),
            protocol=protocol,
            retriever=retriever,
            top_k=top_k,
            rng=random.Random(f"{seed}:{question.id}"),
            habits=habits,
            answer_only=answer_only,
        )
        await walk_to_end(walk, None if query is None else await retriever.search(query, top_k))
        if walk.problem:
            traces.skipped[walk.problem] += 1
        else:
            traces.counts["traces"] += 1
            traces.counts.update(walk.counts)
            traces.examples.extend(walk.examples)
    return traces


async def walk_to_end(walk: Walk, shown: Sequence[RetrievedPassage] | None) -> None:
    """Walks a question to its end in its protocol, or records the problem.

    Args:
        walk: A new walk; its examples, counts and problem are filled in.
        shown: Passages at the root; None if the protocol decides.

    Raises:
        RetrievalError: If a search failed.
    """
    question = walk.question
    walk.state = root_of(question, walk.protocol, None if shown is None else tuple(shown))
    if question.answerable and not walk.hops:
        is_known = question.supporting_ids or question.supporting_titles
        walk.problem = NOT_IN_CORPUS if is_known else NOT_GIVEN
    elif question.answerable and not question.answers:
        walk.problem = "no answer"
    else:
        await WALKS[walk.protocol.name](walk)
