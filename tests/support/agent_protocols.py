"""Settings of a protocol, as a recipe's `agent:` block gives them."""

from typing import Any

from branchwise.agent.protocols import AGENT_BLOCK
from branchwise.agent.settings import AgentSettings


def agent_settings(protocol: str = "reasonrag", **settings: Any) -> AgentSettings:
    """Returns the checked settings of a protocol."""
    checked = AGENT_BLOCK({"protocol": protocol, **settings})
    assert isinstance(checked, AgentSettings)
    return checked
