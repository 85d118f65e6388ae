"""The passages of one index, in the order that every index numbers them."""

import hashlib
import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from branchwise.base import ConfigError
from branchwise.types import Passage, RetrievedPassage

Scores = NDArray[np.float32]
PassageNumbers = NDArray[np.int64]


def corpus_hash(passages: Iterable[Passage]) -> str:
    """Returns the hash of ids, titles and texts, 16 hex digits; the order of the passages does not
    matter.
    """
    digest = hashlib.sha256()
    for passage in sorted(passages, key=lambda passage: passage.id):
        for field in (passage.id, passage.title, passage.text):
            data = field.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
    return digest.hexdigest()[:16]


def in_index_order(passages: Iterable[Passage]) -> list[Passage]:
    """Returns passages by id: row numbers then order as ids do, which settles ties without a
    lookup.

    Raises:
        ConfigError: If the corpus is empty, or two passages share an id.
    """
    ordered = sorted(passages, key=lambda passage: passage.id)
    if not ordered:
        raise ConfigError("the corpus has no passages: nothing can be indexed (check data.corpus)")
    for before, after in itertools.pairwise(ordered):
        if before.id == after.id:
            raise ConfigError(f"the corpus has two passages with id {before.id!r}; ids must differ")
    return ordered


def top_k_rows(scores: Scores, top_k: int) -> PassageNumbers:
    """Returns the rows of the best `top_k` scores above zero, by (−score, row).

    Ties at the cut go to the lower rows, so a result never depends on how a partition happened
    to move equal scores.

    Args:
        scores: shape (n,).
        top_k: Number of passages, ≥ 1.

    Returns:
        At most `top_k` rows; fewer if fewer scores are above zero.
    """
    rows = np.flatnonzero(scores > 0)
    if len(rows) > top_k:
        cut = np.partition(scores[rows], len(rows) - top_k)[len(rows) - top_k]
        rows = rows[scores[rows] >= cut]
    order = np.argsort(-scores[rows], kind="stable")
    return np.asarray(rows[order[:top_k]])


def retrieved(
    passages: Sequence[Passage], rows: PassageNumbers, scores: Scores
) -> list[RetrievedPassage]:
    """Returns the passages at `rows` with their scores (`scores[i]` belongs to `rows[i]`)."""
    return [
        RetrievedPassage(id=p.id, title=p.title, text=p.text, score=float(score))
        for p, score in zip((passages[row] for row in rows), scores, strict=True)
    ]
