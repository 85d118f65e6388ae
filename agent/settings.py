"""What `agent:` in a recipe may say."""

from typing import Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from storage.settings import Settings


class AgentSettings(Settings):
    """Protocol and budget.

    Attributes:
        protocol: How policy and environment talk: `reasonrag`, `evo-rag`, `arena`, `r1-searcher`,
            `eval-rar`, `search-r1`, `autorefine`, or `reading` (one turn without a search).
        max_steps: Most policy calls of a trajectory, in search, rollouts and inference. If the
            protocol forces an answer, the last of them uses the forced-answer prompt.
        max_total_tokens: Once a call's prompt and completion together have so many tokens, the
            trajectory ends; unset: no limit.
        max_retrievals: Most searches that R1-Searcher's protocol serves.
        max_corrections: Most invalid actions that Eval-RAR, Search-R1 and AutoRefine answer with a
            corrective sentence; the next one ends the trajectory.
        references: What ARENA's protocol shows: the paragraphs `given` with the question (the
            paper), or the passages that a search with the question finds (`retrieved`).
        prompt: R1-Searcher's prompt: for a `base` model, or an `instruct` model.
        prefill: How the assistant's turn begins in protocols that continue one turn; unset: the
            protocol's own (`<think>` for R1-Searcher's `base` prompt, else nothing).
        structured: Whether decoding is constrained to the protocol's form, if both can.
        history: What ReasonRAG's prompts show of earlier steps: the `contents` of their tags, or
            the whole `responses` (the paper, equations 2, 4 and 6), which keeps what a large
            model writes before its tag.
    """

    protocol: str = "reasonrag"
    max_steps: int = Field(default=10, ge=1, le=100)
    max_total_tokens: int | None = Field(default=None, ge=1)
    max_retrievals: int = Field(default=8, ge=0)
    max_corrections: int = Field(default=3, ge=0)
    references: Literal["given", "retrieved"] = "given"
    prompt: Literal["base", "instruct"] = "base"
    prefill: str | None = None
    structured: bool = True
    history: Literal["contents", "responses"] = "contents"

    @field_validator("protocol")
    @classmethod
    def _check_protocol(cls, name: str) -> str:
        from agent.protocols import PROTOCOLS

        if name not in PROTOCOLS:
            known = ", ".join(PROTOCOLS)
            raise PydanticCustomError(
                "unknown_protocol", "no such protocol; use one of {known}", {"known": known}
            )
        return name
