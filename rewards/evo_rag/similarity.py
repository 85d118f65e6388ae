"""Similarity of two steps or two texts, by their words."""

from collections.abc import Sequence

from rewards.answers import normalise


def similarity(one: str, other: str) -> float:
    """Returns the Jaccard similarity of two contents' normalised tokens, in [0, 1]."""
    words, others = (set(normalise(content).split()) for content in (one, other))
    return len(words & others) / len(words | others) if words | others else 1.0


def longest_common_run(one: Sequence[str], other: Sequence[str]) -> int:
    """Returns the length of the longest run of tokens in both sequences, in linear time."""
    # Suffix automaton of `other`. A state is a set of runs that end at the same places: `longest`
    # is the length of the longest of them, `shorter` the state of the longest that is missing.
    longest, shorter, following = [0], [-1], [dict[str, int]()]
    last = 0
    for token in other:
        state, new = last, len(longest)
        last = new
        longest.append(longest[state] + 1)
        shorter.append(0)
        following.append({})
        while state >= 0 and token not in following[state]:
            following[state][token] = new
            state = shorter[state]
        if state < 0:
            continue
        target = following[state][token]
        if longest[target] > longest[state] + 1:
            # Only the shorter runs of `target` also end here: they become a state of their own.
            copy = len(longest)
            longest.append(longest[state] + 1)
            shorter.append(shorter[target])
            following.append(dict(following[target]))
            shorter[target] = copy
            while state >= 0 and following[state].get(token) == target:
                following[state][token] = copy
                state = shorter[state]
            target = copy
        shorter[new] = target
    best = length = state = 0
    for token in one:
        while state and token not in following[state]:
            state = shorter[state]
            length = longest[state]
        if token in following[state]:
            state, length = following[state][token], length + 1
        best = max(best, length)
    return best
