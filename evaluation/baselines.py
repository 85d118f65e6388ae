"""What policies are held against: one turn of reading, and the most frequent answer.

Reading says what the model is worth without a protocol, with one search, and with a perfect one;
the most frequent answer says what the answers alone give away.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from agent.environment import Trajectory
from agent.reading import with_passages
from agent.state import Action, State, Step
from engines.sampling import Usage
from evaluation.run import Begin, Evaluated
from evaluation.scoring import score_trajectory
from retrieval.interface import Retriever
from rewards.answers import normalise
from storage.records import Passage, Prediction, Question, RetrievedPassage
from storage.text import digest_of


def one_search(retriever: Retriever, top_k: int) -> Begin:
    """One-shot: begin with the passages that a search with the question itself finds."""

    async def begin(question: Question) -> State:
        found = await retriever.search(question.question, top_k)
        return with_passages(question.question, tuple(found))

    return begin


def gold_passages(corpus: Mapping[str, Passage]) -> Begin:
    """Oracle: begin with the passages that a perfect search would find; see `supporting`."""

    async def begin(question: Question) -> State:
        return with_passages(question.question, supporting(question, corpus))

    return begin


def supporting(question: Question, corpus: Mapping[str, Passage]) -> tuple[RetrievedPassage, ...]:
    """A question's gold passages; where they are unknown, the paragraphs it calls supporting.

    The only way from what a question knows of its answer into a prompt, and none but the oracle
    takes it. Empty where neither is known.

    Args:
        question: with `supporting_ids` resolved against the corpus.
        corpus: passages by id.
    """
    gold = [corpus[name] for name in question.supporting_ids if name in corpus]
    if gold:
        return tuple(RetrievedPassage(**passage.model_dump(), score=1.0) for passage in gold)
    marked = (p for p in question.paragraphs if p.is_supporting and p.text.strip())
    return tuple(
        RetrievedPassage(id=p.id or f"{question.id}#{n}", title=p.title, text=p.text, score=1.0)
        for n, p in enumerate(marked)
    )


def majority_answers(questions: Iterable[Question]) -> dict[str, str]:
    """By source, the normalised answer that is right most often; ties go by name.

    Args:
        questions: others than those that are asked. Each counts once for every distinct gold.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for question in questions:
        counts[question.source].update({normalise(gold) for gold in question.answers} - {""})
    return {
        source: min(found, key=lambda answer: (-found[answer], answer))
        for source, found in sorted(counts.items())
        if found
    }


def answer_alike(
    questions: Sequence[Question], answers: Mapping[str, str], *, policy: str, seed: int
) -> Evaluated:
    """The same answer to every question of a source; no model is asked.

    Args:
        questions: answerable ones of the sources of `answers`; others are left out.
        answers: by source.
        policy: the name that tables show.
        seed: the run's.
    """
    return Evaluated(
        predictions=[
            _told(question, answers[question.source], policy, seed)
            for question in questions
            if question.answerable and question.source in answers
        ],
        failures=[],
        unanswered=[],
        skipped=sum(not question.answerable for question in questions),
    )


def _told(question: Question, answer: str, policy: str, seed: int) -> Prediction:
    step = Step("reasoning", "", Action("answer", answer))
    state = State(question.question).after(step, "terminal")
    return score_trajectory(
        question,
        Trajectory(state, Usage(), "answer"),
        policy=policy,
        digest=digest_of(policy, answer),
        seed=seed,
        latency_s=0.0,
        given=state.depth,
    )
