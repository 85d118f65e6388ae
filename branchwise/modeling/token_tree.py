"""Lays out token sequences as a tree, so that common prefixes are stored once.

The siblings of a state share their prompt, and all prompts of a stage share its instruction. In a
causal model, a token attends only to earlier tokens. So a shared prefix has to be read only once,
however many sequences continue it. This is tree attention as in SpecInfer (Miao et al., 2024,
section 4), here for training and embeddings.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeVar

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """A trie of N tokens, depth first. Token i sees token j if and only if `j <= i < ends[j]`.

    Attributes:
        tokens: (N,) token ids; N is the number of distinct non-empty prefixes.
        positions: (N,) position of each token in its sequences, from 0.
        ends: (N,) index after the last token of each token's subtree.
        paths: Indices of each sequence's tokens, in the caller's order.
    """

    tokens: list[int]
    positions: list[int]
    ends: list[int]
    paths: list[list[int]]


def prefix_tree(sequences: Sequence[tuple[int, ...]]) -> PrefixTree:
    """Lays out any number of sequences of token ids; equal sequences share all tokens."""
    # Sorting puts equal prefixes next to each other, so one pass over the sequences is a
    # depth-first walk.
    #
    #   abc, abd, ae        index      0 1 2 3 4
    #     a - b - c         tokens     a b c d e
    #       |   ` d         positions  0 1 2 2 1
    #       ` e             ends       5 4 3 4 5
    tree = PrefixTree([], [], [], [[] for _ in sequences])
    before: tuple[int, ...] = ()
    path: list[int] = []
    for number in sorted(range(len(sequences)), key=sequences.__getitem__):
        sequence = sequences[number]
        shared = common_prefix(before, sequence)
        first = len(tree.tokens)
        tree.tokens.extend(sequence[shared:])
        tree.positions.extend(range(shared, len(sequence)))
        path = [*path[:shared], *range(first, len(tree.tokens))]
        tree.paths[number] = path
        before = sequence
    tree.ends.extend([len(tree.tokens)] * len(tree.tokens))
    open_tokens: list[int] = []
    for token, position in enumerate(tree.positions):
        # A token's subtree ends at the next token that is not deeper.
        for closed in open_tokens[position:]:
            tree.ends[closed] = token
        open_tokens[position:] = [token]
    return tree


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Returns the length of the common prefix in tokens."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def prefix_batches(
    rows: Iterable[Row],
    most_tokens: int,
    *,
    tokens_of: Callable[[Row], tuple[int, ...]],
    shared: bool = True,
) -> Iterator[list[Row]]:
    """Yields the rows in batches of sorted neighbours, whose long common prefixes are read once.

    Args:
        most_tokens: Most tokens per batch. A longer row is a batch of its own.
        tokens_of: Returns the token ids of a row.
        shared: Whether a batch counts common prefixes once.
    """
    # Of all rows before it, a sorted row shares its longest prefix with its neighbour. So comparing
    # neighbours gives the exact size of a batch's tree, without building it. A new batch shares
    # nothing with the one before, so it counts its first row in full.
    batch: list[Row] = []
    read, before = 0, tuple[int, ...]()
    for tokens, row in sorted(((tokens_of(row), row) for row in rows), key=lambda pair: pair[0]):
        new = len(tokens) - (common_prefix(before, tokens) if batch and shared else 0)
        if batch and read + new > most_tokens:
            yield batch
            batch, read, new = [], 0, len(tokens)
        batch.append(row)
        read, before = read + new, tokens
    if batch:
        yield batch
