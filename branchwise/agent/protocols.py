"""The `agent:` block of a recipe, and the protocol that it names."""

from typing import Annotated

from pydantic import BeforeValidator, SerializeAsAny

from branchwise.base import NamedBlock

from .arena import Arena
from .evo_rag import EvoRAG
from .protocol import PROTOCOLS, AgentProtocol
from .r1_searcher import R1Searcher
from .reading import Reading
from .reasonrag import ReasonRAG
from .search_loop import AutoRefine, EvalRAR, SearchR1
from .settings import AgentSettings

OWN = (ReasonRAG, EvoRAG, Arena, R1Searcher, EvalRAR, SearchR1, AutoRefine, Reading)
"""Our own protocols, which register themselves when they are imported."""

AGENT_BLOCK = NamedBlock(
    "protocol",
    ReasonRAG.name,
    "protocol",
    lambda: {name: protocol.settings_class for name, protocol in PROTOCOLS.items()},
)

AgentBlock = Annotated[AgentSettings, SerializeAsAny(), BeforeValidator(AGENT_BLOCK)]
"""Type of a recipe's `agent:`: the settings of any registered protocol."""


def protocol_of(settings: AgentSettings) -> AgentProtocol:
    """Returns the protocol that a recipe's `agent:` block names, with its settings."""
    return PROTOCOLS[settings.protocol](settings)
