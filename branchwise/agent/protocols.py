"""Protocols by their name in `agent.protocol`."""

from .arena import Arena
from .evo_rag import EvoRAG
from .protocol import AgentProtocol
from .r1_searcher import R1Searcher
from .reading import Reading
from .reasonrag import ReasonRAG
from .search_loop import AutoRefine, EvalRAR, SearchR1
from .settings import AgentSettings

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
