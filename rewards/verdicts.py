"""Verdicts of each protocol's rules on a finished trajectory, with the scores of its answer."""

from collections.abc import Callable

from agent.actions import INVALID
from agent.protocol import AgentProtocol
from agent.state import State
from rewards.arena import arena_verdicts
from rewards.eval_rar import eval_rar_verdicts
from rewards.outcome import Verdicts
from rewards.r1_searcher import r1_searcher_verdicts
from storage.records import Question

VERDICTS: dict[str, Callable[[Question, AgentProtocol, State], Verdicts]] = {
    "arena": arena_verdicts,
    "r1-searcher": r1_searcher_verdicts,
    "eval-rar": eval_rar_verdicts,
    "search-r1": eval_rar_verdicts,
    "autorefine": eval_rar_verdicts,
}
"""Rules by protocol; for any other protocol, the format is correct if no action is invalid."""


def verdicts_of(question: Question, protocol: AgentProtocol, state: State) -> Verdicts:
    """Judges a finished trajectory by the rules of its protocol."""
    judge = VERDICTS.get(protocol.name)
    if judge is not None:
        return judge(question, protocol, state)
    return Verdicts(all(step.action.kind != INVALID for step in state.steps))
