"""What `agent:` in a recipe may say."""

from typing import Literal

from pydantic import Field, field_validator

from storage.settings import Settings


class AgentSettings(Settings):
    """Protocol and budget.

    Attributes:
        protocol: How policy and environment talk: `reasonrag`, `evo-rag`, or `reading` (one turn
            without a search).
        max_steps: Most policy calls of a trajectory, in search, rollouts and inference. If the
            protocol forces an answer, the last of them uses the forced-answer prompt.
        max_total_tokens: Once a call's prompt and completion together have so many tokens, the
            trajectory ends; null for no limit.
        structured: Whether decoding is constrained to the protocol's form, if both can.
        history: What ReasonRAG's prompts show of earlier steps: the `contents` of their tags, or
            the whole `responses` (the paper, equations 2, 4 and 6), which keeps what a large
            model writes before its tag.
    """

    protocol: str = "reasonrag"
    max_steps: int = Field(default=10, ge=1, le=100)
    max_total_tokens: int | None = Field(default=None, ge=1)
    structured: bool = True
    history: Literal["contents", "responses"] = "contents"

    @field_validator("protocol")
    @classmethod
    def _check_protocol(cls, name: str) -> str:
        from agent.protocols import PROTOCOLS

        if name not in PROTOCOLS:
            raise ValueError(f"no such protocol ({name}). Choose one of {', '.join(PROTOCOLS)}")
        return name
