"""Judges whether an answer is right, with a model that knows the gold answers.

Sources: ARENA appendix D.3 (LJ: sees the gold answers and the response, not the question; yes or
no) and R1-Searcher section 3.1 (LLM-as-judge: also sees the question; True or False). The wording
of the prompts is ours.
"""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from agent.prompts import prompts_digest
from agent.tags import inert
from engines.sampling import CallIdentity, Engine
from engines.settings import JudgeSettings
from rewards.one_word import ask_for_word
from storage.records import Message, Question

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
        golds = " | ".join(inert(gold) for gold in question.answers) or "(none)"
        lines = [f"Correct answers: {golds}", f"Response: {inert(answer)}"]
        if shows_question := self.prompt == "true-false":
            lines = [f"Question: {inert(question.question)}", *lines]
        words = ("True", "False") if shows_question else ("yes", "no")
        return await ask_for_word(
            self.engine,
            self.settings,
            (Message("system", _text(self.prompt)), Message("user", "\n".join(lines))),
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
    return prompts_digest({prompt: _text(prompt)})


@cache
def _text(prompt: JudgePrompt) -> str:
    return files("rewards").joinpath(f"prompts/judge-{prompt}.txt").read_text("utf-8").strip()
