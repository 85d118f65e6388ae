"""The verifier: a model that judges whether the evidence in context suffices.

EVO-RAG section 3.2: an external model inspects the evidence and returns `enough_evidence` yes or
no. It sees the question and the passages that no BACKTRACK took away, never the gold. So a policy
may rightly refuse an answerable question whose answer it did not find.
"""

from branchwise.agent import State, fenced, live_searches, load_prompts, prompts_digest
from branchwise.engines import CallIdentity, Engine, JudgeSettings
from branchwise.types import Message, Question

from .one_word import ask_for_word


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
    messages = (
        Message("system", load_prompts("prompts", __package__)["verifier"]),
        Message("user", text),
    )
    prompt_hash = verifier_prompt_hash()
    identity = CallIdentity("verifier", question.id, f"verifier/{path}", 0, prompt_hash, seed)
    return await ask_for_word(engine, settings, messages, identity)


def verifier_prompt_hash() -> str:
    """Returns the hash of the verifier's prompt."""
    return prompts_digest(load_prompts("prompts", __package__))
