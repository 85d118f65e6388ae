"""How alike two steps are in words."""

from rewards.answers import normalise


def similarity(one: str, other: str) -> float:
    """Jaccard similarity of two contents' normalised tokens, in [0, 1]."""
    words, others = (set(normalise(content).split()) for content in (one, other))
    return len(words & others) / len(words | others) if words | others else 1.0
