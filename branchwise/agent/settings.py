"""Settings of the `agent:` block."""

from typing import Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from branchwise.base import Settings


class AgentSettings(Settings):
    """Protocol and budget.

    Attributes:
        protocol: Protocol between policy and environment: `reasonrag`, `evo-rag`, `arena`,
            `r1-searcher`, `eval-rar`, `search-r1`, `autorefine`, or `reading` (one turn without a
            search).
        max_steps: Most policy calls per trajectory, in search, rollouts and inference. If the
            protocol forces an answer, the last call uses the forced-answer prompt.
        max_retrievals: Most searches per trajectory in R1-Searcher's protocol.
        max_corrections: Most invalid actions that Eval-RAR, Search-R1 and AutoRefine answer with a
            corrective sentence; the next one ends the trajectory.
        references: References in ARENA's protocol: the paragraphs `given` with the question (the
            paper), or passages `retrieved` with the question as query.
        prompt: R1-Searcher's prompt, for a `base` or an `instruct` model.
        prefill: Beginning of the assistant's turn, in protocols that continue one turn. Defaults to
            the protocol's own (`<think>` for R1-Searcher's `base` prompt, else nothing).
        structured: Whether decoding is constrained to the protocol's form, if protocol and engine
            support it.
        history: Earlier steps in ReasonRAG's prompts: the `contents` of their tags, or the whole
            `responses` (the paper, equations 2, 4 and 6), which keep the reasoning that a large
            model writes before its tag.
    """

    protocol: str = "reasonrag"
    max_steps: int = Field(default=10, ge=1, le=100)
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
        from .protocols import PROTOCOLS

        if name not in PROTOCOLS:
            known = ", ".join(PROTOCOLS)
            raise PydanticCustomError(
                "unknown_protocol", "unknown protocol; use one of {known}", {"known": known}
            )
        return name
