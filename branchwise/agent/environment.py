"""The environment: runs one step for the search, or a whole trajectory for rollouts and inference.

One step is one policy call: prompt, completion, action, retrieval if the action is a search, next
state. Prompts at rollout time and at training time come from the same protocol.
"""

from dataclasses import dataclass, replace

from branchwise.base import EndpointError
from branchwise.engines import CallIdentity, Completion, Engine, SampleRequest, Sampling, Usage
from branchwise.retrieval import Retriever
from branchwise.types import Message, Question, RetrievedPassage

from .protocol import AgentProtocol, root_of
from .state import TERMINAL, State, Step, is_search


@dataclass(frozen=True, slots=True)
class StepResult:
    """One policy call.

    Attributes:
        state: State after the call; its last step holds the parsed action and the text that the
            environment inserted after it.
        completion: Result of the engine, with token ids and log-probabilities if requested.
    """

    state: State
    completion: Completion

    @property
    def step(self) -> Step:
        return self.state.steps[-1]

    @property
    def usage(self) -> Usage:
        return self.completion.usage


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A state followed to its end.

    Attributes:
        state: Final state.
        moves: Policy calls in order, from the trajectory's first state; earlier calls are left out.
        stop_reason: Reason that it ended (`AgentProtocol.stop_reason`).
    """

    state: State
    moves: tuple[StepResult, ...]
    stop_reason: str

    @property
    def usage(self) -> Usage:
        """Tokens of all calls."""
        return sum((move.usage for move in self.moves), Usage())


@dataclass(frozen=True)
class Environment:
    """Policy, protocol and retrieval.

    Attributes:
        protocol: Protocol; its settings hold the budget.
        top_k: Passages that a search returns.
        seed: Seed of the run; part of every call's identity.
        tokens: Whether completions keep token ids and log-probabilities, as outcome RL needs.
            Protocols that continue one turn always keep them.
    """

    protocol: AgentProtocol
    engine: Engine
    retriever: Retriever
    top_k: int
    seed: int = 0
    tokens: bool = False

    def __post_init__(self) -> None:
        """Checks that the engine reports token ids if they are needed.

        Raises:
            EndpointError: If protocol or trainer need token ids, and the engine does not report
                any.
        """
        if self._keeps_tokens:
            require_token_ids(self.engine, self.protocol)

    def prompt(self, state: State) -> tuple[Message, ...]:
        """Returns the messages that prompt for the next step of `state`."""
        return self.protocol.prompt(state)

    async def root(self, question: Question) -> State:
        """Returns the state before the first call, with the passages that the protocol shows.

        Raises:
            RetrievalError: If the protocol searches first, and the search failed.
        """
        query = self.protocol.first_query(question)
        passages = None if query is None else await self._search(query)
        return root_of(question, self.protocol, passages)

    async def act(
        self, state: State, sampling: Sampling, *, question_id: str, path: str, draw: int = 0
    ) -> StepResult:
        """Takes one step from a state that has not ended.

        Args:
            path: With `draw`, the name of the call in the ledger.

        Raises:
            EndpointError: If the policy's endpoint failed.
            RetrievalError: If the search failed.
        """
        protocol, last = self.protocol, self.protocol.is_last(state)
        constrained = protocol.is_constrained and self.engine.capabilities.structured_output
        request = SampleRequest(
            protocol.messages(state, last=last),
            replace(sampling, stop=protocol.stops) if protocol.stops else sampling,
            CallIdentity("policy", question_id, path, draw, protocol.prompt_hash, self.seed),
            protocol.structure(state, last=last) if constrained else None,
            prefix=protocol.prefix(state),
            tokens=self._keeps_tokens,
        )
        completion = await self.engine.sample(request)
        text, cut = completion.text, completion.finish_reason == "length"
        # Engines cut the stop string off, but it is the closing tag of the action.
        if completion.stop_reason in protocol.stops:
            text += completion.stop_reason
        action = protocol.read(state, text, last=last, cut=cut)
        usage = completion.usage
        step = Step(
            state.stage,
            text,
            action,
            forced=last and protocol.forces_answer,
            cut=cut,
            token_ids=self._continued_ids(completion),
            total_tokens=usage.input_tokens + usage.output_tokens,
        )
        stage = protocol.next_stage(state, action, last=last)
        if stage != TERMINAL:  # the result of a last search would not be read
            if is_search(action.kind):
                step = replace(step, passages=await self._search(action.content))
            step = replace(step, inserted=protocol.inserted(state, step))
        return StepResult(state.after(step, stage), completion)

    async def trajectory(
        self, state: State, sampling: Sampling, *, question_id: str, path: str, draw: int = 0
    ) -> Trajectory:
        """Follows `state` to its end, at most `agent.max_steps` steps from the root."""
        moves: list[StepResult] = []
        while not state.terminal:
            move = await self.act(
                state, sampling, question_id=question_id, path=f"{path}+{state.depth}", draw=draw
            )
            moves.append(move)
            state = move.state
        return Trajectory(state, tuple(moves), self.protocol.stop_reason(state))

    @property
    def _keeps_tokens(self) -> bool:
        return self.tokens or self.protocol.continues

    def _continued_ids(self, completion: Completion) -> tuple[int, ...] | None:
        """Returns the sampled ids that a continued turn keeps.

        If the policy ended the turn by itself, the token that ended it is dropped, because the
        environment still writes into the same turn.
        """
        ids = completion.token_ids
        if ids is None or not self.protocol.continues:
            return None
        by_itself = completion.finish_reason == "stop" and (
            completion.stop_reason not in self.protocol.stops
        )
        return ids[:-1] if by_itself else ids

    async def _search(self, query: str) -> tuple[RetrievedPassage, ...]:
        return tuple(await self.retriever.search(query, self.top_k))


def require_token_ids(engine: Engine, protocol: AgentProtocol) -> None:
    """Checks that the engine reports token ids (continued turns and outcome RL need them).

    Raises:
        EndpointError: If it does not report token ids.
    """
    if not engine.capabilities.token_ids:
        need = "outcome RL needs"
        if protocol.continues:
            need = f"agent.protocol `{protocol.name}` needs to continue a turn"
        raise EndpointError(
            f"{engine.model} does not report token ids, which {need}. Use engine: "
            "openvino, engine: vllm, or engine: openai with a vLLM server",
            fatal=True,
        )
