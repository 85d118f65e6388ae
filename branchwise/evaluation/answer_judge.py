"""The answer judge: a model that knows the gold answers and judges whether an answer is right.

Sources: ARENA appendix D.3 (LJ: sees the gold answers and the response, not the question; yes or
no) and R1-Searcher section 3.1 (LLM-as-judge: also sees the question; True or False). The wording
of the prompts is ours.
"""

from dataclasses import dataclass
from typing import Literal

from branchwise.agent import load_prompts, prompts_digest, without_tags
from branchwise.engines import CallIdentity, Engine, JudgeSettings
from branchwise.rewards import ask_for_word
from branchwise.types import Message, Question

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
            (Message("system", _prompt(self.prompt)), Message("user", "\n".join(lines))),
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
    return prompts_digest({prompt: _prompt(prompt)})


def _prompt(prompt: JudgePrompt) -> str:
    return load_prompts("prompts", __package__)[f"judge-{prompt}"]
