"""What `agent:` in a recipe may say."""

from typing import Literal

from pydantic import Field

from storage.settings import Settings


class AgentSettings(Settings):
    """Protocol and budget.

    Attributes:
        protocol: how a policy and the environment talk.
        max_steps: the one depth limit (search, rollouts, inference); the call at this step uses
            the forced-answer prompt.
        structured: constrain decoding to the protocol's form, where the engine can.
    """

    protocol: Literal["reasonrag", "evo-rag"] = "reasonrag"
    max_steps: int = Field(default=10, ge=1, le=100)
    structured: bool = True
