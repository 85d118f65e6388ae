"""The longest common run of tokens, compared with a brute-force search."""

from hypothesis import given
from hypothesis import strategies as st

from rewards.evo_rag.similarity import longest_common_run

TOKENS = st.lists(st.sampled_from("abc"), max_size=14)


@given(TOKENS, TOKENS)
def test_longest_common_run_matches_brute_force(one: list[str], other: list[str]) -> None:
    runs = {tuple(other[i:j]) for i in range(len(other) + 1) for j in range(i, len(other) + 1)}
    longest = max(
        j - i
        for i in range(len(one) + 1)
        for j in range(i, len(one) + 1)
        if tuple(one[i:j]) in runs
    )
    assert longest_common_run(one, other) == longest == longest_common_run(other, one)


def test_longest_common_run_of_long_repetitive_inputs() -> None:
    assert longest_common_run(["a"] * 50_000, [*["a"] * 50_000, "b"]) == 50_000
    assert longest_common_run(["a", "b"] * 20_000, ["a", "b", "b"] * 20_000) == 3
