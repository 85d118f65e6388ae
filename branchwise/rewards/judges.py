"""Models that answer one question about a trajectory in one word.

The verifier judges whether the evidence in context suffices (EVO-RAG section 3.2: an external model
inspects the evidence and returns `enough_evidence` yes or no). It sees the question and the
passages that no BACKTRACK took away, never the gold. So a policy may rightly refuse an answerable
question whose answer it did not find.

The answer judge knows the gold answers and judges whether an answer is right. Sources: ARENA
appendix D.3 (LJ: sees the gold answers and the response, not the question; yes or no) and
R1-Searcher section 3.1 (LLM-as-judge: also sees the question; True or False). The wording of the
prompts is ours.
"""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from branchwise.agent import State, fenced, live_searches, prompts_digest, without_tags
from branchwise.engines import (
    CallIdentity,
    Engine,
    JudgeSettings,
    SampleRequest,
    Sampling,
    Structure,
)
from branchwise.types import Message, Question

from .one_word import read_word


async def ask_for_word(
    engine: Engine,
    settings: JudgeSettings,
    messages: tuple[Message, ...],
    identity: CallIdentity,
    words: tuple[str, str] = ("yes", "no"),
) -> bool | None:
    """Asks for one of two words; decoding is constrained to them if the engine can.

    Returns:
        Whether the reply is the first word; None if it is neither.

    Raises:
        EndpointError: If the model's endpoint failed.
    """
    can = engine.capabilities.structured_output
    request = SampleRequest(
        messages,
        Sampling(settings.temperature, settings.top_p, settings.max_new_tokens),
        identity,
        Structure("regex", "|".join(words)) if can else None,
    )
    reply = await engine.sample(request)
    return read_word(reply.text, reply.finish_reason, words)


async def judge_evidence(
    engine: Engine, settings: JudgeSettings, question: Question, state: State, path: str, seed: int
) -> bool | None:
    """Returns the verifier's verdict on the evidence of `state`.

    The verdict is None if the reply is neither word; the refusal then earns no reward.

    Args:
        path: Name of the state's node in the ledger.
        seed: Seed of the run.

    Raises:
        EndpointError: If the verifier's endpoint failed.
    """
    shown = {p.id: p for live in live_searches(state.steps) for p in live.passages}
    passages = [fenced(p.title, p.text) for p in shown.values()] or ["(no passage)"]
    text = "\n".join([*passages, f"Question: {question.question}", "Do the passages suffice?"])
    messages = (Message("system", _prompt("verifier")), Message("user", text))
    prompt_hash = verifier_prompt_hash()
    identity = CallIdentity("verifier", question.id, f"verifier/{path}", 0, prompt_hash, seed)
    return await ask_for_word(engine, settings, messages, identity)


def verifier_prompt_hash() -> str:
    """Returns the hash of the verifier's prompt."""
    return prompts_digest({"verifier": _prompt("verifier")})


JudgePrompt = Literal["yes-no", "true-false"]


@dataclass(frozen=True)
class AnswerJudge:
    """A model that judges answers; `seed` is the run's."""

    engine: Engine
    settings: JudgeSettings
    prompt: JudgePrompt = "yes-no"
    seed: int = 0

    async def is_right(self, question: Question, answer: str) -> bool | None:
        """Returns the judge's verdict, or None if its reply is neither word.

        The call is identified by the question alone, so that equal answers of several policies
        share it.

        Raises:
            EndpointError: If the judge's endpoint failed.
        """
        golds = " | ".join(without_tags(gold) for gold in question.answers) or "(none)"
        lines = [f"Correct answers: {golds}", f"Response: {without_tags(answer)}"]
        if shows_question := self.prompt == "true-false":
            lines = [f"Question: {without_tags(question.question)}", *lines]
        words = ("True", "False") if shows_question else ("yes", "no")
        return await ask_for_word(
            self.engine,
            self.settings,
            (Message("system", _prompt(f"judge-{self.prompt}")), Message("user", "\n".join(lines))),
            CallIdentity(
                "judge",
                question.id,
                f"answer/{self.prompt}",
                prompt_hash=answer_judge_hash(self.prompt),
                seed=self.seed,
            ),
            words,
        )


def answer_judge_hash(prompt: JudgePrompt) -> str:
    """Returns the hash of a prompt file."""
    return prompts_digest({prompt: _prompt(f"judge-{prompt}")})


@cache
def _prompt(name: str) -> str:
    return files(__package__).joinpath(f"prompts/{name}.txt").read_text("utf-8").strip()
