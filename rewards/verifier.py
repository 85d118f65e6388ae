"""The refusal verifier: does the evidence in context suffice to answer the question?

Source: EVO-RAG section 3.2: an external model inspects the evidence and returns `enough_evidence`
yes or no. It sees the question and the passages that no BACKTRACK took away, never the gold. So a
policy may rightly refuse an answerable question whose answer it did not find.
"""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from agent.evo_rag import live_searches
from agent.prompts import prompts_digest
from agent.state import State
from agent.tags import fenced
from engines.sampling import CallIdentity, Engine
from engines.settings import JudgeSettings
from rewards.one_word import ask_for_word
from storage.records import Message, Question


@dataclass(frozen=True)
class Verifier:
    """A model that judges whether evidence suffices; `seed` is the run's."""

    engine: Engine
    settings: JudgeSettings
    seed: int = 0

    async def judge_evidence(self, question: Question, state: State, path: str) -> bool | None:
        """Returns the verdict on the evidence of `state`.

        The verdict is None if the reply is neither word; the refusal then earns no reward.

        Raises:
            EndpointError: If the verifier's endpoint failed.
        """
        identity = CallIdentity(
            "verifier", question.id, f"verifier/{path}", 0, verifier_prompt_hash(), self.seed
        )
        return await ask_for_word(self.engine, self.settings, _messages(question, state), identity)


def verifier_prompt_hash() -> str:
    """Returns the hash of the verifier's prompt."""
    return prompts_digest({"verifier": _prompt()})


@cache
def _prompt() -> str:
    return files("rewards").joinpath("prompts/verifier.txt").read_text("utf-8").strip()


def _messages(question: Question, state: State) -> tuple[Message, ...]:
    shown = {p.id: p for live in live_searches(state.steps) for p in live.passages}
    passages = [fenced(p.title, p.text) for p in shown.values()] or ["(no passage)"]
    text = "\n".join([*passages, f"Question: {question.question}", "Do the passages suffice?"])
    return (Message("system", _prompt()), Message("user", text))
