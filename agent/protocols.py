"""Protocols by their name in `agent.protocol`."""

from agent.arena import Arena
from agent.evo_rag import EvoRAG
from agent.protocol import AgentProtocol
from agent.r1_searcher import R1Searcher
from agent.reading import Reading
from agent.reasonrag import ReasonRAG
from agent.search_loop import AutoRefine, EvalRAR, SearchR1
from agent.settings import AgentSettings

PROTOCOLS: dict[str, type[AgentProtocol]] = {
    protocol.name: protocol
    for protocol in (
        ReasonRAG,
        EvoRAG,
        Arena,
        R1Searcher,
        EvalRAR,
        SearchR1,
        AutoRefine,
        Reading,
    )
}
"""Protocols by name; add new ones here."""


def protocol_of(settings: AgentSettings) -> AgentProtocol:
    """Returns the protocol that a recipe's `agent:` block names, with its settings.

    Raises:
        KeyError: If the name was not validated by `AgentSettings`.
    """
    return PROTOCOLS[settings.protocol](settings)
