"""The strict judge of partial trajectories (ReasonRAG figure 14, in our own words).

The judge sees the gold answers; its text never enters a policy's prompt or a pair. It reads the
agent's steps, not the passages: an evidence step already contains the text that the agent took from
them.
"""

from dataclasses import dataclass

from branchwise.agent import State, load_prompts, prompts_digest, without_tags
from branchwise.base import JudgeError
from branchwise.engines import (
    CallIdentity,
    Capabilities,
    Engine,
    JudgeSettings,
    SampleRequest,
    Sampling,
    Structure,
)
from branchwise.rewards import NodeEvaluation
from branchwise.types import Message, Question

from .verdict import VERDICT_REGEX, VERDICT_SCHEMA, read_score


@dataclass(frozen=True)
class Judge:
    """A model that scores states.

    Attributes:
        seed: Seed of the run.
        responses: Whether it reads the policy's whole responses (the paper, eq. 6) instead of the
            contents of their tags.
    """

    engine: Engine
    settings: JudgeSettings
    seed: int = 0
    responses: bool = False

    async def score(self, question: Question, state: State, path: str) -> NodeEvaluation:
        """Scores `state` against the golds of `question`; `path` names the call in the ledger.

        Returns:
            Score in [0, 1] and reply, without a value; an unreadable reply has no score.

        Raises:
            EndpointError: If the judge cannot be reached.
        """
        structure = _structure(self.engine.capabilities)
        request = SampleRequest(
            _messages(question, state, structured=structure is not None, responses=self.responses),
            Sampling(self.settings.temperature, self.settings.top_p, self.settings.max_new_tokens),
            CallIdentity("judge", question.id, path, 0, judge_prompt_hash(), self.seed),
            structure,
        )
        reply = await self.engine.sample(request)
        try:
            score = read_score(reply.text, reply.finish_reason)
        except JudgeError as unreadable:
            return NodeEvaluation(None, judge_text=reply.text, unscored=str(unreadable))
        return NodeEvaluation(None, judge_score=score, judge_text=reply.text)


def judge_prompt_hash() -> str:
    """Returns the hash of the judge's prompt files."""
    return prompts_digest(load_prompts("prompts", __package__))


def _structure(can: Capabilities) -> Structure | None:
    """Returns the strongest constraint that the engine supports.

    The regex is preferred because it limits the length of the critique. Under the schema a small
    judge rambles until the token limit cuts it, before it writes a score.
    """
    if can.structured_output:
        return Structure("regex", VERDICT_REGEX)
    return Structure("json_schema", VERDICT_SCHEMA) if can.json_schema else None


def _messages(
    question: Question, state: State, *, structured: bool, responses: bool
) -> tuple[Message, ...]:
    prompts = load_prompts("prompts", __package__)
    form = prompts["judge-json" if structured else "judge-sentence"]
    golds = " | ".join(without_tags(answer) for answer in question.answers) or "(none)"
    # Each step is data: on one line, and unable to close its fence.
    contents = [s.text if responses else s.action.content or s.text for s in state.steps]
    steps = [
        f'<step number="{number}" kind="{step.action.kind}">{without_tags(content)}</step>'
        for number, (step, content) in enumerate(zip(state.steps, contents, strict=True), 1)
    ]
    lines = [
        f"Question: {without_tags(question.question)}",
        f"Golden answers: {golds}",
        *(steps or ["(no step yet)"]),
        "Grade the steps.",
    ]
    return (Message("system", f"{prompts['judge']}\n{form}"), Message("user", "\n".join(lines)))
