"""Oracle: one turn of reading the gold passages, as after a perfect search."""

from collections.abc import Mapping

from agent.state import State
from evaluation.baselines import Baseline, Material
from storage.records import Passage, Question, RetrievedPassage


def baseline(material: Material) -> Baseline:
    """Starts with the gold passages; questions without known ones are left out."""

    async def begin(question: Question) -> State:
        return State(question.question, given=supporting(question, material.corpus))

    return Baseline(
        begin,
        can_be_asked=lambda question: bool(supporting(question, material.corpus)),
        left_out="whose gold passages are unknown",
    )


def supporting(question: Question, corpus: Mapping[str, Passage]) -> tuple[RetrievedPassage, ...]:
    """Returns a question's gold passages, or else the paragraphs marked as supporting.

    This is the only way from what a question knows of its answer into a prompt, and only the
    oracle takes it. Empty if neither is known.

    Args:
        question: `supporting_ids` are resolved against the corpus.
        corpus: Passages by id.
    """
    gold = [corpus[name] for name in question.supporting_ids if name in corpus]
    if gold:
        return tuple(RetrievedPassage(**passage.model_dump(), score=1.0) for passage in gold)
    marked = (p for p in question.paragraphs if p.is_supporting and p.text.strip())
    return tuple(
        RetrievedPassage(id=p.id or f"{question.id}#{n}", title=p.title, text=p.text, score=1.0)
        for n, p in enumerate(marked)
    )
