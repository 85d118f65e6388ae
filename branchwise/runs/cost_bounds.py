"""Bounds of what a stage's calls cost: the shortest possible work, and the longest."""

from dataclasses import astuple, dataclass
from heapq import nlargest
from typing import Any

from branchwise.agent import AgentProtocol, root_of
from branchwise.engines import ModelSettings, Usage, cost_usd
from branchwise.evaluation import PolicyUnderTest
from branchwise.mcts import ChainSettings, SearchSettings, TreeSettings
from branchwise.sources import Data
from branchwise.types import Question

Range = tuple[float, float]
"""A lowest and a highest value."""

NOTHING: Range = (0.0, 0.0)
CALL_BYTES = 420
"""Bytes of a call in ledger and tables, without its text.

Measured on `configs/atlas.yaml`: 1,658 calls take 692 kB in the ledger, of which 79 kB are text;
trees and pairs of 1,092 of them take 50 kB.
"""
TEXT_BYTES = 4
"""Bytes of a generated token's text."""
PROMPT_ID_BYTES, SAMPLED_ID_BYTES = 4, 8
"""Bytes of a prompt token's id, and of a generated one's id and log-probability, if stored."""
DENSE_TEXT = 3
"""Bytes of text per token from which the highest number of input tokens is computed.

English has more than four, so prompts have fewer tokens.
"""
JUDGE_PROMPT_TOKENS = 500
"""Tokens of a judge's or verifier's own prompt, from above."""


@dataclass(frozen=True, slots=True)
class CostRange:
    """Costs from the lowest to the highest.

    Attributes:
        cost_usd: US dollars; None if a price is not set.
    """

    calls: Range = NOTHING
    input_tokens: Range = NOTHING
    output_tokens: Range = NOTHING
    cost_usd: Range | None = NOTHING
    disk_bytes: Range = NOTHING

    def __add__(self, other: "CostRange") -> "CostRange":
        pairs = zip(astuple(self), astuple(other), strict=True)
        sums: list[Any] = [None if a is None or b is None else add(a, b) for a, b in pairs]
        return CostRange(*sums)

    def times(self, units: Range) -> "CostRange":
        """Returns the costs of so many questions, answers or rollouts."""
        products: list[Any] = [a and multiply(a, units) for a in astuple(self)]
        return CostRange(*products)


def call_cost(
    model: ModelSettings, prompt: Range, number: Range, *, tokens: bool = False
) -> CostRange:
    """Returns bounds of the costs of a number of calls.

    Args:
        model: Model that is called.
        prompt: Lowest and highest number of tokens of a prompt (`prompt_lengths`).
        number: Lowest and highest number of calls.
        tokens: Whether the ledger keeps token ids.
    """
    read = multiply(prompt, number)
    written = multiply((1, model.max_new_tokens), number)
    ids = (PROMPT_ID_BYTES, SAMPLED_ID_BYTES) if tokens else (0, 0)
    disk = add(
        scale(number, CALL_BYTES), add(scale(read, ids[0]), scale(written, TEXT_BYTES + ids[1]))
    )
    return CostRange(number, read, written, _dollars(model, read, written), disk)


def prompt_lengths(protocol: AgentProtocol, data: Data, top_k: int, max_new_tokens: int) -> Range:
    """Returns the lowest and highest number of tokens of a prompt.

    Args:
        protocol: Protocol of the policy.
        data: Questions and corpus.
        top_k: Passages per search.
        max_new_tokens: Most tokens that the policy writes per call.
    """
    if not data.questions:
        return NOTHING

    def size(question: Question) -> int:
        return sum(len(p.text) for p in protocol.given(question) or ()) + len(question.question)

    def first_prompt(question: Question) -> str:
        messages = protocol.prompt(root_of(question, protocol))
        return " ".join(message.content for message in messages)

    shortest, longest = (first_prompt(pick(data.questions, key=size)) for pick in (min, max))
    sizes = (len(p.title.encode()) + len(p.text.encode()) for p in data.passages)
    retrieved = sum(nlargest(top_k, sizes)) / DENSE_TEXT
    added = protocol.max_calls * (retrieved + max_new_tokens)
    high = len(longest.encode()) / DENSE_TEXT + added + JUDGE_PROMPT_TOKENS
    return float(len(shortest.split())), high


def tree_calls(search: SearchSettings, steps: int) -> tuple[int, int, int]:
    """Returns bounds of the policy's calls for one tree.

    Args:
        steps: Most policy calls of a trajectory.

    Returns:
        Fewest calls, most calls, and most final states.
    """
    if isinstance(search, ChainSettings):
        # A chain visits at most one state per depth; each may get this many more draws, each
        # followed to its end.
        more = 2 * search.branches - 1 if search.branches > 1 else 0
        chain = steps + more * steps * (steps + 1) // 2
        low = 1 if search.max_output_tokens else search.iterations
        return low, search.iterations * chain, search.iterations * (1 + more * steps)
    assert isinstance(search, TreeSettings)
    # The root gets its children first, and a tree whose children are all final is exhausted.
    low = 1 if search.max_output_tokens else min(search.iterations, search.max_children)
    if search.uses("playout"):
        # Each iteration draws one trajectory; its first step may repeat a sibling and be redrawn.
        return low, search.iterations * (steps + 1), search.iterations
    rollouts = search.rollouts if search.uses("rollout") else 0
    iterations_left, high = search.iterations, 0
    for depth in range(1, steps + 1):  # shallow nodes cost most: their rollouts are the longest
        nodes = min(iterations_left, search.max_children**depth)
        high += nodes * (2 + rollouts * (steps - depth))  # a repeated child is drawn once more
        iterations_left -= nodes
    return low, high, search.iterations


def rollout_cost(
    policy: PolicyUnderTest, data: Data, top_k: int, *, tokens: bool = False
) -> CostRange:
    """Returns bounds of the costs of one trajectory from a question to its end.

    Args:
        policy: Policy that answers.
        data: Questions and corpus.
        top_k: Passages per search.
        tokens: Whether the ledger keeps token ids in any case.
    """
    model, protocol = policy.model, policy.protocol
    prompt = prompt_lengths(protocol, data, top_k, model.max_new_tokens)
    tokens = tokens or protocol.continues
    return call_cost(model, prompt, (1, protocol.max_calls), tokens=tokens)


def _dollars(model: ModelSettings, read: Range, written: Range) -> Range | None:
    """Returns bounds, the lowest with all input cached; None without a price."""
    least, most = int(read[0]), int(read[1])
    low = cost_usd(Usage(least, least, int(written[0])), model.price_per_million)
    high = cost_usd(Usage(most, 0, int(written[1])), model.price_per_million)
    return None if low is None or high is None else (low, high)


def add(a: Range, b: Range) -> Range:
    """Adds two ranges."""
    return a[0] + b[0], a[1] + b[1]


def multiply(a: Range, b: Range) -> Range:
    """Multiplies two ranges of positive numbers."""
    return a[0] * b[0], a[1] * b[1]


def scale(values: Range, factor: float) -> Range:
    """Multiplies a range by a positive number."""
    return values[0] * factor, values[1] * factor
