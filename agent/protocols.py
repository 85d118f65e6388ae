"""Protocols by the name that `agent.protocol` gives."""

from agent.evo_rag import EvoRAG
from agent.protocol import AgentProtocol
from agent.reasonrag import ReasonRAG


def protocol_named(name: str) -> AgentProtocol:
    """The protocol of a recipe.

    Raises:
        KeyError: no such protocol (the settings refuse unknown names before).
    """
    protocols: dict[str, type[ReasonRAG] | type[EvoRAG]] = {
        "reasonrag": ReasonRAG,
        "evo-rag": EvoRAG,
    }
    return protocols[name]()
