"""Traces: what a good policy would do, replayed through the protocol with real retrieval.

Each trace draws one wording of every query and every piece of evidence, so that the policy learns
several ways to say a thing and its samples still differ. A query that does not bring the passage
is kept with the evidence "None" and tried again in other words: recovery as it really happens.
Nothing is answered before its evidence was seen.
"""

import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agent.environment import prompter
from agent.protocol import AgentProtocol
from agent.state import Action, ActionKind, State, Step
from retrieval.interface import Retriever
from storage.records import Passage, Question, RetrievedPassage
from training.examples import StepExample
from training.hops import Hop, hops_of

NOTHING_FOUND = "None"
"""Evidence where no passage helps (the protocol's own word)."""

MAX_TRIES = 3
"""Wordings of one hop's query before the question is put aside."""

FORCED_SHARE = 0.1
"""Share of the traces that also show the forced-answer prompt, answered with evidence at hand."""


@dataclass(frozen=True, slots=True)
class Traces:
    """Step examples of all traces, in order of the questions.

    `counts` says how many traces were made, what was put aside and why, and how many queries
    brought their passage ("query found it", "query missed").
    """

    examples: list[StepExample]
    counts: Counter[str]


@dataclass
class _Walk:
    """One trace in the making."""

    question: Question
    protocol: AgentProtocol
    max_steps: int
    state: State
    examples: list[StepExample] = field(default_factory=list)
    problem: str | None = None

    def step(self, kind: ActionKind, content: str, found: Iterable[RetrievedPassage] = ()) -> None:
        """Learn this step here, then take it."""
        forced = self.state.depth + 1 >= self.max_steps
        action = Action(kind, content)
        target = self.protocol.render(action)
        if self.problem is None:
            self.problem = self._problem_of(action, target, forced)
        self.examples.append(self._example(self.state, target, self.max_steps))
        step = Step(self.state.stage, target, action, forced, tuple(found))
        self.state = self.state.after(step, self.protocol.next_stage(self.state, action))

    def forced_answer(self, before: State, answer: str) -> None:
        """Also learn to answer where the budget ends at the state `before` the answer."""
        target = self.protocol.render(Action("answer", answer))
        self.examples.append(self._example(before, target, before.depth + 1))

    def _problem_of(self, action: Action, target: str, forced: bool) -> str | None:
        if forced and action.kind != "answer":
            return "longer than max_steps"
        form = self.protocol.structure(self.state, forced=forced)
        fits = form.kind != "regex" or re.fullmatch(form.value, target) is not None
        if not fits or self.protocol.parse(self.state, target, forced=forced) != action:
            return "a step does not fit the protocol's form"
        return None

    def _example(self, state: State, target: str, max_steps: int) -> StepExample:
        messages = prompter(self.protocol, max_steps)(state)
        return StepExample(messages, target, self.question.id, state.stage)


async def build_traces(
    questions: Iterable[Question],
    passages: Mapping[str, Passage],
    protocol: AgentProtocol,
    retriever: Retriever,
    seed: int,
    top_k: int,
    max_steps: int = 10,
) -> Traces:
    """Step examples from gold facts.

    Args:
        questions: with gold answers; of the part `warm` only (the caller sees to it).
        passages: the corpus by id.
        seed: of the choice of wordings; a question's trace depends on nothing else.
        top_k: passages a query brings, as in the recipe.
        max_steps: the policy's budget; longer traces are put aside.

    Raises:
        RetrievalError: a search failed.
    """
    traces = Traces([], Counter())
    for question in questions:
        rng = random.Random(f"{seed}:{question.id}")
        walk = _Walk(question, protocol, max_steps, State(question.question))
        await _follow(walk, hops_of(question, passages), retriever, top_k, rng, traces.counts)
        if walk.problem:
            traces.counts[f"put aside: {walk.problem}"] += 1
        else:
            traces.counts["traces"] += 1
            traces.examples.extend(walk.examples)
    return traces


async def _follow(
    walk: _Walk,
    hops: list[Hop],
    retriever: Retriever,
    top_k: int,
    rng: random.Random,
    counts: Counter[str],
) -> None:
    """Walk one question to its answer, or note why it cannot be."""
    if not hops or not walk.question.answers:
        walk.problem = "no answer" if hops else "supporting passages are not in the corpus"
        return
    for hop in hops:
        if not await _take(walk, hop, retriever, top_k, rng, counts):
            walk.problem = walk.problem or "no query wording brings the passage"
            return
    before, answer = walk.state, walk.question.answers[0]
    walk.step("answer", answer)
    if rng.random() < FORCED_SHARE:
        walk.forced_answer(before, answer)


async def _take(
    walk: _Walk,
    hop: Hop,
    retriever: Retriever,
    top_k: int,
    rng: random.Random,
    counts: Counter[str],
) -> bool:
    """Search in up to `MAX_TRIES` wordings until the hop's passage is shown; copy its evidence."""
    wordings = rng.sample(hop.queries, min(MAX_TRIES, len(hop.queries)))
    for wording in wordings:
        found = await retriever.search(wording, top_k)
        walk.step("query", wording, found)
        shown = any(passage.id == hop.passage_id for passage in found)
        counts["query found it" if shown else "query missed"] += 1
        walk.step("evidence", rng.choice(hop.evidence) if shown else NOTHING_FOUND)
        if shown:
            return True
    return False
