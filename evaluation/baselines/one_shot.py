"""One-shot: one turn of reading the passages that a search with the question finds."""

from agent.state import State
from evaluation.baselines import Baseline, Material
from storage.records import Question


def baseline(material: Material) -> Baseline:
    """Begins with one search, which is not a step of the policy."""

    async def begin(question: Question) -> State:
        found = await material.retriever.search(question.question, material.top_k)
        return State(question.question, given=tuple(found))

    return Baseline(begin)
