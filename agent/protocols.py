"""Protocols by the name that `agent.protocol` gives."""

from agent.protocol import AgentProtocol
from agent.reasonrag import ReasonRAG


def protocol_named(name: str) -> AgentProtocol:
    """The protocol of a recipe.

    Raises:
        KeyError: no such protocol (the settings refuse unknown names before).
    """
    return {"reasonrag": ReasonRAG}[name]()
