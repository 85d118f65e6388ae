"""Every kind of action that a policy can take, in one table."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ActionKind:
    """Properties of a kind of action, under any protocol.

    Attributes:
        searches: Whether its content is a query for the retriever.
        ends: Whether it ends the trajectory. `invalid` does, unless the protocol answers invalid
            actions with a corrective message.
    """

    searches: bool = False
    ends: bool = False


INVALID = "invalid"
"""Kind of any text that is not an action of the protocol."""

ACTIONS: dict[str, ActionKind] = {
    "query": ActionKind(searches=True),
    "evidence": ActionKind(),
    "search": ActionKind(searches=True),
    "backtrack": ActionKind(),
    "answer": ActionKind(ends=True),
    "refuse": ActionKind(ends=True),
    INVALID: ActionKind(ends=True),
}
"""Kinds by name. A protocol that needs another kind adds it here."""


def is_search(kind: str) -> bool:
    """Returns whether actions of this kind query the retriever; False for a root's ""."""
    return kind in ACTIONS and ACTIONS[kind].searches


def is_end(kind: str) -> bool:
    """Returns whether actions of this kind end a trajectory."""
    return kind in ACTIONS and ACTIONS[kind].ends
