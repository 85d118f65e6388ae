"""One trace in the making: what is searched is really retrieved, and every step is an example."""

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from agent.evo_rag import with_note
from agent.protocol import AgentProtocol
from agent.state import Action, State, Step
from retrieval.interface import Retriever
from storage.records import Question, RetrievedPassage
from training.examples import StepExample
from training.hops import GoldHop
from training.settings import TraceSettings

MAX_TRIES = 3
"""Wordings of one query before a walk gives it up."""

FORCED_SHARE = 0.1
"""Share of the traces that also show the forced-answer prompt, answered with evidence at hand."""


@dataclass
class Walk:
    """A question on its way to an end.

    Attributes:
        hops: of an answerable question; empty if a gold passage is not in the corpus.
        wordings: queries for a question that has no hops.
        top_k: passages that a search returns.
        rng: decides everything that is left to chance.
        examples: one a step so far.
        counts: of what was done.
        problem: why this is no trace; null if it is one.
    """

    question: Question
    hops: Sequence[GoldHop]
    wordings: Sequence[str]
    protocol: AgentProtocol
    retriever: Retriever
    top_k: int
    settings: TraceSettings
    rng: random.Random
    state: State
    examples: list[StepExample] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    problem: str | None = None

    @property
    def steps_left(self) -> int:
        return self.protocol.settings.max_steps - self.state.depth

    async def search(
        self, kind: str, query: str, note: str | None = None
    ) -> tuple[RetrievedPassage, ...]:
        """Search as the policy would; the passages that this brought.

        Raises:
            RetrievalError: the search failed.
        """
        found = tuple(await self.retriever.search(query, self.top_k))
        self.step(kind, query, note, found)
        return found

    def step(
        self,
        kind: str,
        content: str = "",
        note: str | None = None,
        found: tuple[RetrievedPassage, ...] = (),
    ) -> None:
        """Learn this step here, then take it.

        Args:
            note: what the step notes first; null: nothing.
            found: passages that it brings.
        """
        forced = self.protocol.is_last(self.state)
        action = Action(kind, content)
        target = self._text(action, note)
        if self.problem is None:
            self.problem = self._problem_of(action, target, forced)
        self.examples.append(self._example(self.protocol, self.state, target))
        step = Step(self.state.stage, target, action, forced, found)
        self.state = self.state.after(
            step, self.protocol.next_stage(self.state, action, last=forced)
        )

    def answer(self, note: str | None = None) -> None:
        """Give the gold answer; by chance, also learn to where the budget ends here."""
        before, answer = self.state, self.question.answers[0]
        self.step("answer", answer, note)
        if self.rng.random() < FORCED_SHARE:
            target = self._text(Action("answer", answer), note)
            self.examples.append(
                self._example(self.protocol.with_budget(before.depth + 1), before, target)
            )
            self.counts["forced answers"] += 1

    def _text(self, action: Action, note: str | None) -> str:
        rendered = self.protocol.render(action)
        return rendered if note is None else with_note(note, rendered)

    def _problem_of(self, action: Action, target: str, forced: bool) -> str | None:
        if forced and action.kind != "answer":
            return "longer than max_steps"
        form = self.protocol.structure(self.state, last=forced)
        fits = form is None or form.kind != "regex" or re.fullmatch(form.value, target) is not None
        if not fits or self.protocol.parse(self.state, target, last=forced) != action:
            return "a step does not fit the protocol's form"
        return None

    def _example(self, protocol: AgentProtocol, state: State, target: str) -> StepExample:
        return StepExample(protocol.prompt(state), target, self.question.id, state.stage)
