"""What `mcts:` in a recipe may say."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class SearchSettings(BaseModel):
    """The tree search.

    Attributes:
        iterations: simulations a question; fewer if the tree is exhausted first.
        max_children: children a state may have.
        temperature: of the children; null takes the policy's. Hotter siblings differ more.
        selection: `puct` is ReasonRAG eq. 5; `uct` is its published code.
        c: weight of exploration.
        evaluator: what a new node is worth (`judge`: eq. 6; `rollout`: eq. 1).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    iterations: int = Field(default=64, ge=1)
    max_children: int = Field(default=2, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=5)
    selection: Literal["puct", "uct"] = "puct"
    c: float = Field(default=1.4, ge=0)
    evaluator: Literal["rollout", "judge"] = "rollout"
