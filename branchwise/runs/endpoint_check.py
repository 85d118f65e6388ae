"""Checks a model at an endpoint with the calls that a run makes.

The role's own code makes the call, so roles, sampling, limits, constraint and fields are the run's.
"""

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

from branchwise.agent import AgentProtocol, Environment, root_of
from branchwise.annotation import Judge
from branchwise.base import EndpointError
from branchwise.engines import (
    CallIdentity,
    Capabilities,
    Completion,
    Engine,
    JudgeSettings,
    OpenAIEngine,
    RefusedRequest,
    SampleRequest,
    Sampling,
    Structure,
)
from branchwise.evaluation import AnswerJudge, JudgePrompt
from branchwise.rewards import judge_evidence
from branchwise.types import Message, Question, RetrievedPassage

from .reply_faults import ADVICE, cause_of

QUESTION = Question(
    id="check", question="Which city is the capital of France?", answers=("Paris",), source="check"
)

Ask = Callable[[Engine], Awaitable[object]]
"""Makes a role's first call with an engine."""


@dataclass
class RecordingEngine:
    """Passes calls on to an engine, and keeps the last one.

    Attributes:
        request, completion: The last call; None before it, or before its reply.
    """

    engine: Engine
    request: SampleRequest | None = None
    completion: Completion | None = None
    model: str = field(init=False)
    digest: str = field(init=False)
    capabilities: Capabilities = field(init=False)

    def __post_init__(self) -> None:
        self.model, self.digest = self.engine.model, self.engine.digest
        self.capabilities = self.engine.capabilities

    async def sample(self, request: SampleRequest) -> Completion:
        self.request = request
        self.completion = await self.engine.sample(request)
        return self.completion

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        pass


class _NoPassages:
    """A retriever without passages: the check makes one call and needs no search."""

    digest = "none"

    async def search(self, query: str, k: int) -> list[RetrievedPassage]:
        return []


def policy_call(protocol: AgentProtocol, sampling: Sampling, seed: int) -> Ask:
    """Returns the first call of a policy."""

    async def ask(engine: Engine) -> object:
        environment = Environment(protocol, engine, _NoPassages(), top_k=1, seed=seed)
        state = root_of(QUESTION, protocol, ())
        return await environment.act(state, sampling, question_id=QUESTION.id, path="check")

    return ask


def judge_call(protocol: AgentProtocol, settings: JudgeSettings) -> Ask:
    """Returns a call of the judge of steps."""

    async def ask(engine: Engine) -> object:
        state = root_of(QUESTION, protocol, ())
        return await Judge(engine, settings).score(QUESTION, state, "check")

    return ask


def verifier_call(protocol: AgentProtocol, settings: JudgeSettings, seed: int) -> Ask:
    """Returns a call of the verifier of refusals."""

    async def ask(engine: Engine) -> object:
        state = root_of(QUESTION, protocol, ())
        return await judge_evidence(engine, settings, QUESTION, state, "check", seed)

    return ask


def answer_judge_call(settings: JudgeSettings, prompt: JudgePrompt) -> Ask:
    """Returns a call of the judge of answers."""

    async def ask(engine: Engine) -> object:
        return await AnswerJudge(engine, settings, prompt).is_right(QUESTION, "Paris")

    return ask


def plain_call(sampling: Sampling) -> Ask:
    """Returns a call of a model without a protocol, such as the reader of the baselines."""

    async def ask(engine: Engine) -> object:
        turns = (Message("system", "Answer in one word."), Message("user", QUESTION.question))
        return await engine.sample(SampleRequest(turns, sampling, CallIdentity("check", "", "")))

    return ask


async def check_call(engine: Engine, ask: Ask, block: str, *, reads_reply: bool = False) -> None:
    """Makes a role's call.

    Args:
        engine: Engine of the model.
        ask: The call.
        block: Block of the recipe with the model's settings, for the advice.
        reads_reply: Whether an empty reply and an unreadable verdict are errors, too. A model may
            give one now and then, so only `doctor` asks for this.

    Raises:
        EndpointError: If the endpoint refuses the call; the message names the settings with which
            it accepts it. Or if it ignores the constraint of the call.
    """
    recording = RecordingEngine(engine)
    try:
        result = await ask(recording)
    except RefusedRequest as refusal:
        advice = await _advice(engine, recording.request, block)
        raise EndpointError(f"{refusal}. {advice}") from None
    request, completion = recording.request, recording.completion
    if request is None or completion is None:
        return
    if reads_reply:
        _check_reply(result, completion, block)
    if request.structure is None:
        return
    is_whole = completion.finish_reason not in ("length", "content_filter")
    if is_whole and not _fits(request.structure, completion.text):
        raise EndpointError(
            f"the server ignores constraints: it replied {completion.text[:80]!r} where only a "
            f"reply of the required form is possible. Set {block}.structured_output to the form "
            "that it takes, or to none"
        )


def _check_reply(result: object, completion: Completion, block: str) -> None:
    """Checks that a reply has a text, and that a judge's verdict was read.

    Raises:
        EndpointError: If not.
    """
    if not completion.text.strip():
        cause = cause_of(completion.finish_reason, completion.stop_reason or "")
        raise EndpointError(f"its reply is empty: {cause}. {ADVICE[cause].format(role=block)}")
    if result is None or getattr(result, "unscored", None) is not None:
        raise EndpointError(
            f"its verdict cannot be read: {completion.text[:80]!r}. Use another model, or set "
            f"{block}.structured_output to a form that the server takes"
        )


async def _advice(engine: Engine, request: SampleRequest | None, block: str) -> str:
    if request is None or request.tokens or not isinstance(engine, OpenAIEngine):
        return "See docs/endpoints.md for the settings of known servers"
    try:
        settings = await engine.advise(request)
    except EndpointError as error:
        return f"The settings that it accepts could not be found: {error}"
    if settings == {}:
        return "It accepted the same request a moment later; run `branchwise doctor` again"
    if settings is None:
        return (
            "It refuses every form of this request that was tried. Try another model, or set "
            f"{block}.request as the server's documentation says"
        )
    return "It accepts this request with " + " and ".join(
        f"`{block}.{name}: {_in_yaml(value)}`" for name, value in settings.items()
    )


def _in_yaml(value: Any) -> str:
    """Returns a setting as YAML on one line, which JSON without quotes around names is."""
    return re.sub(r'"([A-Za-z_][\w-]*)"', r"\1", json.dumps(value))


def _fits(structure: Structure, text: str) -> bool:
    """Returns whether a whole reply has the form of its constraint."""
    if structure.kind == "regex":
        return re.fullmatch(structure.value, text.strip()) is not None
    try:
        reply = json.loads(text)
    except (ValueError, RecursionError):
        return False
    required = json.loads(structure.value).get("required", [])
    return isinstance(reply, dict) and reply.keys() >= set(required)
