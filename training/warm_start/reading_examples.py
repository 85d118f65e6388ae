"""Reading examples: a question's passage, in the protocol's form, among others that do not answer.

A reading question is a question of one hop whose searches are staged: they return passages that a
real search finds, with the gold passage among them. The replies after a search are learned
(evidence, analysis, answer). The first query is learned only if it really finds the
passage.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from branchwise.agent import AgentProtocol
from branchwise.base import holds_phrase
from branchwise.retrieval import Retriever
from branchwise.types import Passage, Question, RetrievedPassage

from ..examples import StepExample
from ..settings import ReadingSettings
from .hops import hops_of, stated_answers
from .trace_builder import Habits, Walk
from .traces import Traces, walk_to_end


@dataclass
class StagedSearch:
    """A search that shows the gold passage among others, from the second one on if `absent`.

    The number of the others is random, because short prompts teach reading at less cost. The gold
    passage keeps its real rank, or has a random one if the search missed it. Other passages that
    contain an answer are left out.

    Attributes:
        hit: Whether the first search really finds the gold passage; None before it.
    """

    retriever: Retriever
    question: Question
    gold: Passage
    rng: random.Random
    absent: bool
    digest: str = field(init=False, default="staged")
    hit: bool | None = field(init=False, default=None)

    async def search(self, query: str, top_k: int) -> list[RetrievedPassage]:
        """Returns up to `top_k` passages."""
        passages = await self.retriever.search(query, 2 * top_k)
        names = [passage.id for passage in passages]
        distractors = [p for p in passages if p.id != self.gold.id and not self._answers(p)]
        if self.hit is None:
            self.hit = self.gold.id in names[:top_k]
        if self.absent:
            self.absent = False
            return distractors[:top_k]
        shown = distractors[: self.rng.randint(0, top_k - 1)]
        rank = names.index(self.gold.id) if self.gold.id in names else top_k
        place = rank if rank < top_k else self.rng.randint(0, len(shown))
        shown.insert(min(place, len(shown)), RetrievedPassage(**self.gold.model_dump(), score=1.0))
        return shown

    def _answers(self, passage: RetrievedPassage) -> bool:
        return any(holds_phrase(passage.text, answer) for answer in stated_answers(self.question))


async def build_reading(
    questions: Iterable[Question],
    passages: Mapping[str, Passage],
    protocol: AgentProtocol,
    retriever: Retriever,
    seed: int,
    top_k: int,
    reading: ReadingSettings,
    answer_only: bool = False,
) -> Traces:
    """Builds reading examples; their number is in the count `reading examples`.

    Args:
        questions: Answerable questions with a supporting passage.
        passages: Corpus by id.
        retriever: Search over these passages.
        seed: Random seed; a question's examples depend on nothing else.
        top_k: Number of passages per query, as in the recipe.
        answer_only: Whether ARENA's examples have the answer section only.

    Raises:
        RetrievalError: If a search failed.
    """
    built = Traces()
    for question in questions:
        # The question itself is one more wording, which often searches best.
        hops = [
            replace(hop, queries=tuple(dict.fromkeys((question.question, *hop.queries))))
            for hop in hops_of(question, passages)[-1:]
        ]
        rng = random.Random(f"{seed}:reading:{question.id}")
        walk = Walk(question, hops, (), protocol, retriever, top_k, rng, Habits(), answer_only, 1.0)
        shown, staged = None, None
        if hops:
            # If the prompt has the passages, there is no second search.
            in_prompt = protocol.given(question) is not None
            absent = rng.random() < reading.absent and not in_prompt
            gold = passages[hops[0].passage_id]
            walk.retriever = staged = StagedSearch(retriever, question, gold, rng, absent)
            shown = await staged.search(question.question, top_k) if in_prompt else None
        await walk_to_end(walk, shown)
        if walk.problem:
            built.skipped[walk.problem] += 1
            continue
        examples = _drawn_examples(walk, reading, hit=bool(staged and staged.hit))
        built.counts["reading questions"] += 1
        built.counts["reading examples"] += len(examples)
        built.examples.extend(examples)
    return built


def _drawn_examples(walk: Walk, reading: ReadingSettings, hit: bool) -> list[StepExample]:
    """Returns the examples, by their shares; that of the first query only if it is a `hit`.

    The last step answers; if the protocol can force an answer, that follows it.
    """
    first = 0 if walk.state.given else 1
    last = len(walk.state.steps) - 1
    examples: list[StepExample] = []
    if hit and walk.rng.random() < reading.queries:
        examples += walk.examples[:first]
    if walk.rng.random() < reading.grounding:
        examples += walk.examples[first:last]
    if walk.rng.random() < reading.answers:
        decided, *forced = walk.examples[last:]
        examples += forced if forced and walk.rng.random() < reading.forced else [decided]
    return examples
