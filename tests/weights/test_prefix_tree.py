"""The prefix tree, compared with the sequences that it encodes."""

from hypothesis import given
from hypothesis import strategies as st

from branchwise.modeling.token_tree import prefix_tree

SEQUENCES = st.lists(st.lists(st.integers(0, 2), max_size=6).map(tuple), max_size=8)


@given(SEQUENCES)
def test_paths_hold_the_sequences_and_their_positions(
    sequences: list[tuple[int, ...]],
) -> None:
    tree = prefix_tree(sequences)
    for sequence, path in zip(sequences, tree.paths, strict=True):
        assert tuple(tree.tokens[place] for place in path) == sequence
        assert [tree.positions[place] for place in path] == list(range(len(sequence)))


@given(SEQUENCES)
def test_a_token_attends_to_exactly_its_own_prefix(sequences: list[tuple[int, ...]]) -> None:
    tree = prefix_tree(sequences)
    for path in tree.paths:
        for depth, place in enumerate(path):
            seen = [j for j, end in enumerate(tree.ends) if j <= place < end]
            assert seen == path[: depth + 1]


@given(SEQUENCES)
def test_each_distinct_prefix_has_exactly_one_token(sequences: list[tuple[int, ...]]) -> None:
    prefixes = {s[: n + 1] for s in sequences for n in range(len(s))}
    assert len(prefix_tree(sequences).tokens) == len(prefixes)
