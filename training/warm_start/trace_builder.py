"""Builds one trace: searches really retrieve, and every step becomes an example."""

import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from branchwise.agent import TERMINAL, Action, AgentProtocol, State, Step
from branchwise.base import Registry
from branchwise.retrieval import Retriever
from branchwise.types import Question, RetrievedPassage

from ..examples import StepExample
from .hops import GoldHop

NO_QUERY_FINDS_IT = "no query wording finds the passage"
TOO_LONG = "longer than max_steps"
"""Problems of walks that have a remedy (see also `traces`)."""

MAX_TRIES = 3
"""Wordings of one query that a walk tries."""

FORCED_SHARE = 0.1
"""Share of the traces that also show the forced-answer prompt, with the evidence and the answer."""


def cited(rng: random.Random, hop: GoldHop) -> str:
    """Returns one wording of a hop's evidence, as a sentence of a longer text."""
    evidence = rng.choice(hop.evidence)
    return evidence if evidence.endswith((".", "!", "?")) else f"{evidence}."


@dataclass(frozen=True, slots=True)
class Habits:
    """Deviations of EVO-RAG's traces from the shortest way, for later training to remove.

    A greedy policy follows the majority of the traces at a state, so a habit of fewer than half of
    them shows in its samples only.

    Attributes:
        redundant: Share of the hops that are searched a second time, in other words or the same,
            after their passage was found.
        detour: Share of the hops followed by a wrong lead: a search for the title of a passage that
            was shown and is not needed.
        backtrack: Share of the searches without a new result (misses, redundant ones, detours) that
            are taken back.
        give_up: Share of the answerable questions of two or more hops that are refused with half of
            the evidence.
    """

    redundant: float = 0.0
    detour: float = 0.0
    backtrack: float = 0.0
    give_up: float = 0.0


WASTEFUL = Habits(redundant=0.6, detour=0.25, backtrack=0.5, give_up=0.05)


@dataclass
class Walk:
    """A question on its way to an end.

    Attributes:
        hops: Hops of an answerable question.
        wordings: Queries for a question without hops.
        top_k: Number of passages that a search returns.
        answer_only: Whether a trace of ARENA has the answer section only.
        rng: Source of all random choices.
        forced_share: Chance that the trace also shows the forced-answer prompt.
        examples: One example per step so far.
        counts: Numbers of hops, searches, refusals and forced answers.
        problem: Reason it is not a valid trace; None if it is.
    """

    question: Question
    hops: Sequence[GoldHop]
    wordings: Sequence[str]
    protocol: AgentProtocol
    retriever: Retriever
    top_k: int
    rng: random.Random
    habits: Habits = WASTEFUL
    answer_only: bool = False
    forced_share: float = FORCED_SHARE
    state: State = field(init=False)
    examples: list[StepExample] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    problem: str | None = None

    @property
    def steps_left(self) -> int:
        return self.protocol.settings.max_steps - self.state.depth

    def is_gold(self, passage: RetrievedPassage) -> bool:
        """Returns whether the question cites a passage, by id or by title."""
        question = self.question
        by_id = passage.id in question.supporting_ids
        return by_id or passage.title in question.supporting_titles

    def draw(self, wordings: Sequence[str]) -> list[str]:
        """Returns up to `MAX_TRIES` of some wordings, in random order."""
        return self.rng.sample(wordings, min(MAX_TRIES, len(wordings)))

    async def search(
        self, kind: str, query: str, **parts: str | None
    ) -> tuple[RetrievedPassage, ...]:
        """Searches as the policy would; returns the passages.

        Raises:
            RetrievalError: If the search failed.
        """
        passages = tuple(await self.retriever.search(query, self.top_k))
        self.step(kind, query, passages, **parts)
        return passages

    def step(
        self,
        kind: str,
        content: str = "",
        passages: tuple[RetrievedPassage, ...] = (),
        /,
        **parts: str | None,
    ) -> None:
        """Adds an example of this step, then takes it.

        Args:
            passages: Passages that the step found.
            parts: Other sections of its text, in order; a None is left out.
        """
        protocol, state = self.protocol, self.state
        forced = protocol.is_last(state)
        sections = tuple((name, text) for name, text in parts.items() if text is not None)
        action = Action(kind, content, parts=sections)
        target = protocol.render(action)
        if not state.steps:
            target = target.removeprefix(protocol.prefill)
        if self.problem is None:
            self.problem = self._problem_of(action, target, forced)
        self.examples.append(
            StepExample(protocol.prompt(state), target, self.question.id, state.stage)
        )
        step = Step(state.stage, target, action, forced, passages)
        stage = protocol.next_stage(state, action, last=forced)
        if stage != TERMINAL:
            step = replace(step, inserted=protocol.inserted(state, step))
        self.state = state.after(step, stage)

    def answer(self, **parts: str | None) -> None:
        """Gives the gold answer; at random, also adds a forced answer with the same text."""
        before = self.state
        self.step("answer", self.question.answers[0], **parts)
        if self.protocol.forces_answer and self.rng.random() < self.forced_share:
            messages = self.protocol.with_budget(before.depth + 1).prompt(before)
            self.examples.append(replace(self.examples[-1], messages=messages))
            self.counts["forced answers"] += 1

    def _problem_of(self, action: Action, target: str, forced: bool) -> str | None:
        if forced and action.kind != "answer":
            return TOO_LONG
        form = self.protocol.structure(self.state, last=forced)
        fits = form is None or form.kind != "regex" or re.fullmatch(form.value, target) is not None
        read = self.protocol.parse(self.state, target, last=forced)
        if not fits or (read.kind, read.content) != (action.kind, action.content):
            return "a step does not fit the protocol's form"
        return None


WalkFunction = Callable[[Walk], Awaitable[None]]

WALKS: Registry[WalkFunction] = Registry(
    "warm-start walk",
    "branchwise.training.warm_start.walks",
    "branchwise.training.warm_start.evo_rag",
)
"""Functions that walk a question to its end, by the protocol's name."""


def register_walk(protocol: str) -> Callable[[WalkFunction], WalkFunction]:
    """Function decorator: adds the walk with which warm-start traces of a protocol are built.

    Args:
        protocol: Name of the protocol.
    """
    return WALKS.named(protocol)
