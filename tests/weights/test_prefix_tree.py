"""The tree of shared beginnings, against what it stands for."""

from hypothesis import given
from hypothesis import strategies as st

from weights.prefix_tree import prefix_tree

SEQUENCES = st.lists(st.lists(st.integers(0, 2), max_size=6).map(tuple), max_size=8)


@given(SEQUENCES)
def test_paths_spell_the_sequences_at_their_own_positions(
    sequences: list[tuple[int, ...]],
) -> None:
    tree = prefix_tree(sequences)
    for sequence, path in zip(sequences, tree.paths, strict=True):
        assert tuple(tree.tokens[place] for place in path) == sequence
        assert [tree.positions[place] for place in path] == list(range(len(sequence)))


@given(SEQUENCES)
def test_a_token_sees_its_own_past_and_nothing_else(sequences: list[tuple[int, ...]]) -> None:
    tree = prefix_tree(sequences)
    for path in tree.paths:
        for depth, place in enumerate(path):
            seen = [j for j, end in enumerate(tree.ends) if j <= place < end]
            assert seen == path[: depth + 1]


@given(SEQUENCES)
def test_what_is_shared_stands_there_once(sequences: list[tuple[int, ...]]) -> None:
    prefixes = {s[: n + 1] for s in sequences for n in range(len(s))}
    assert len(prefix_tree(sequences).tokens) == len(prefixes)
