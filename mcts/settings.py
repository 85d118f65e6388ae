"""What `mcts:` in a recipe may say."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class SearchSettings(BaseModel):
    """How a question's tree is grown.

    Attributes:
        kind: `tree` searches; `chains` samples independent trajectories, whose common beginnings
            make a tree: the comparison. Chains evaluate no inner node, so that `max_children`,
            `selection`, `c` and `evaluator` concern the tree search alone.
        iterations: simulations a question, fewer if the tree is exhausted first; or chains.
        max_children: children a state may have; chains give it as many as they come to.
        branches: draws that chains make at every state they visit, each followed to its end; 1
            makes none besides the chains' own (EVO-RAG: 2).
        temperature: Sampling temperature of child nodes; defaults to the policy's. Higher
            values give more diverse siblings.
        selection: `puct` is ReasonRAG eq. 5; `uct` is its published code.
        c: weight of exploration.
        evaluator: what a new node is worth (`judge`: eq. 6; `rollout`: eq. 1; `reward_model`: the
            score of a trained one). `playout` asks nobody: the new node is followed to its end
            within the tree, whose value is backed up, so that every step of it can be labelled.
        rollouts: completions of a new node that the evaluator `rollout` draws.
        rollout_temperature: Sampling temperature of rollouts; defaults to the policy's. 0
            measures the policy as it answers if
            it is decoded greedily from here on, which one rollout answers without noise.
        normalise: compare Q by where it lies between the lowest and the highest value that this
            tree has seen, for values that are not in [0, 1].
        max_output_tokens: once the policy has generated so many for a question (children, repeated
            draws and rollouts; a judge's do not count), no further iteration begins; the one under
            way may overrun it. Unset: iterations alone count.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Literal["tree", "chains"] = "tree"
    iterations: int = Field(default=64, ge=1, le=1_000_000_000)  # its column is an int32
    max_children: int = Field(default=2, ge=1)
    branches: int = Field(default=1, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=5)
    selection: Literal["puct", "uct"] = "puct"
    c: float = Field(default=1.4, ge=0)
    evaluator: Literal["rollout", "judge", "playout", "reward_model"] = "rollout"
    rollouts: int = Field(default=1, ge=1)
    rollout_temperature: float | None = Field(default=None, ge=0, le=5)
    normalise: bool = False
    max_output_tokens: int | None = Field(default=None, ge=1)
