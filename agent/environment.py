"""The environment: runs one step for the search, or a whole trajectory for rollouts and inference.

One step is one policy call: prompt, completion, action, retrieval if the action asks for it, next
state. Prompts at rollout time and at training time come from the same `AgentProtocol.messages`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from agent.protocol import AgentProtocol
from agent.settings import AgentSettings
from agent.state import Action, State, Step
from engines.sampling import CallIdentity, Completion, Engine, SampleRequest, Sampling, Usage
from retrieval.interface import Retriever
from storage.records import Message, RetrievedPassage


@dataclass(frozen=True, slots=True)
class Move:
    """A step taken: the state it led to and what it cost."""

    state: State
    usage: Usage

    @property
    def step(self) -> Step:
        return self.state.steps[-1]


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A state followed to its end.

    `usage` is what the continuation cost; `stop_reason` is "answer", "forced", "refused" or
    "invalid".
    """

    state: State
    usage: Usage
    stop_reason: str


@dataclass(frozen=True)
class Environment:
    """Policy, protocol and retrieval around one budget.

    Attributes:
        top_k: passages a search returns.
        seed: the run's seed; part of every call's identity.
    """

    protocol: AgentProtocol
    engine: Engine
    retriever: Retriever
    settings: AgentSettings
    top_k: int
    seed: int = 0

    def prompt(self, state: State) -> tuple[Message, ...]:
        """The messages that ask for the next step of `state`."""
        return prompter(self.protocol, self.settings.max_steps)(state)

    def is_forced(self, state: State) -> bool:
        """Whether the next call is the last one that the budget allows."""
        return is_last(state, self.settings.max_steps)

    async def act(
        self, state: State, sampling: Sampling, *, question_id: str, path: str, draw: int = 0
    ) -> Move:
        """Take one step from a non-terminal `state`.

        `path` and `draw` name the call in the ledger.

        Raises:
            EndpointError: the policy could not be asked.
            RetrievalError: the search failed.
        """
        forced = self.is_forced(state)
        structure = self.protocol.structure(state, forced=forced) if self._structured else None
        identity = CallIdentity(
            "policy", question_id, path, draw, self.protocol.prompt_hash, self.seed
        )
        request = SampleRequest(self.prompt(state), sampling, identity, structure)
        completion = await self.engine.sample(request)
        action = self._read(state, completion, forced=forced)
        passages = await self._retrieve(action)
        step = Step(state.stage, completion.text, action, forced, passages)
        return Move(state.after(step, self.protocol.next_stage(state, action)), completion.usage)

    async def trajectory(
        self, state: State, sampling: Sampling, *, question_id: str, path: str, draw: int = 0
    ) -> Trajectory:
        """Follow `state` to its end; ends after at most `max_steps` steps from the root."""
        usage = Usage()
        while not state.terminal:
            move = await self.act(
                state,
                sampling,
                question_id=question_id,
                path=f"{path}+{state.depth}",
                draw=draw,
            )
            state, usage = move.state, usage + move.usage
        return Trajectory(state, usage, stop_reason(state))

    @property
    def _structured(self) -> bool:
        return self.settings.structured and self.engine.capabilities.structured_output

    def _read(self, state: State, completion: Completion, *, forced: bool) -> Action:
        if completion.finish_reason == "length":
            return Action("invalid", "", "cut at the token limit")
        return self.protocol.parse(state, completion.text, forced=forced)

    async def _retrieve(self, action: Action) -> tuple[RetrievedPassage, ...]:
        query = self.protocol.query_of(action)
        return tuple(await self.retriever.search(query, self.top_k)) if query is not None else ()


def is_last(state: State, max_steps: int) -> bool:
    """Whether the next call must answer."""
    return state.depth + 1 >= max_steps


def prompter(protocol: AgentProtocol, max_steps: int) -> Callable[[State], tuple[Message, ...]]:
    """State → the messages that ask for its next step under a budget of `max_steps`."""
    return lambda state: protocol.messages(state, forced=is_last(state, max_steps))


def stop_reason(state: State) -> str:
    """How a terminal state ended."""
    last = state.steps[-1]
    if last.action.kind == "invalid":
        return "invalid"
    if last.action.kind == "refuse":
        return "refused"
    return "forced" if last.forced else "answer"
