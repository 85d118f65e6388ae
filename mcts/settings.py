"""Settings of the `mcts:` block: what both kinds of growing have, and those of each."""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Evaluator = Literal["rollout", "judge", "playout", "reward_model"]


class SearchSettings(BaseModel):
    """How the tree of a question is grown.

    Attributes:
        kind: `tree` is a tree search. `chains`, for comparison, samples independent trajectories
            whose common beginnings form a tree.
        iterations: Simulations per question; or chains.
        fold_duplicates: Whether a draw that equals a sibling is merged into it: same kind of
            action, same content after normalisation (same text if the reward depends on all of it:
            ARENA, R1-Searcher, Eval-RAR). If not (ReasonRAG's published code), every
            draw is a node of its own.
        temperature: Sampling temperature of child nodes; defaults to the policy's. Higher values
            give more diverse siblings.
        max_output_tokens: Generated policy tokens per question after which no further iteration
            starts; the current one may exceed it. Judge tokens do not count. Unset: no limit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Literal["tree", "chains"]
    iterations: int = Field(default=64, ge=1, le=1_000_000_000)  # its column is an int32
    fold_duplicates: bool = True
    temperature: float | None = Field(default=None, ge=0, le=5)
    max_output_tokens: int | None = Field(default=None, ge=1)

    def uses(self, evaluator: Evaluator) -> bool:
        """Returns whether new nodes get their value from this evaluator."""
        return False


class TreeSettings(SearchSettings):
    """A tree search.

    Attributes:
        stop_when_exhausted: Whether the search ends early if no state may get another child. If
            not (ReasonRAG's published code), the remaining simulations revisit terminal nodes:
            they cost no call and change the visits by which `tree` labels weigh children.
        max_children: Most children per state.
        selection: `puct` is ReasonRAG eq. 5; `uct` is its published code.
        c: Weight of exploration.
        evaluator: Source of a new node's value: `judge` (eq. 6), `rollout` (eq. 1), `reward_model`
            (a trained one), or `playout`: the node is played out within the tree and the result is
            backed up, so that every step can be labelled.
        judge_terminals: Whether the judge also values final answers (ReasonRAG's published code)
            instead of their outcome. Labels still come from outcomes, except those of `judge`.
        rollouts: Completions per new node, with the evaluator `rollout`.
        rollout_temperature: Sampling temperature of rollouts; defaults to the policy's. At 0 one
            rollout gives the policy's greedy answer, without noise.
        normalise: Whether Q is rescaled to the range of values seen in this tree. For values
            outside [0, 1].
    """

    kind: Literal["tree"] = "tree"
    stop_when_exhausted: bool = True
    max_children: int = Field(default=2, ge=1)
    selection: Literal["puct", "uct"] = "puct"
    c: float = Field(default=1.4, ge=0)
    evaluator: Evaluator = "rollout"
    judge_terminals: bool = False
    rollouts: int = Field(default=1, ge=1)
    rollout_temperature: float | None = Field(default=None, ge=0, le=5)
    normalise: bool = False

    def uses(self, evaluator: Evaluator) -> bool:
        return self.evaluator == evaluator


class ChainSettings(SearchSettings):
    """Independent trajectories, each to its own end.

    Attributes:
        branches: Samples drawn at each visited state, each played out to the end; 1 draws none in
            addition to the chains (EVO-RAG: 2).
    """

    kind: Literal["chains"] = "chains"
    branches: int = Field(default=1, ge=1)


SEARCH_SETTINGS: Mapping[str, type[SearchSettings]] = {
    "tree": TreeSettings,
    "chains": ChainSettings,
}
"""Settings classes by `mcts.kind`."""
